"""Liveness, readiness and metrics."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from locking import locks, policy
from locking.metrics import registry
from shop.administration import alerts
from shop.operations.probes import STORES, probe_all
from shop.web.decorators import live_page

PROBE_SECONDS = 3.0
"""A store that takes longer counts as down."""


@live_page
def livez(request: HttpRequest) -> HttpResponse:
    """Respond with 200 while this process serves requests."""
    return HttpResponse("ok\n", content_type="text/plain")


@live_page
def readyz(request: HttpRequest) -> HttpResponse:
    """Respond with 200 if every store that a purchase needs is up, else with 503.

    It also reports the cache, without which the shop sells all the same.
    """
    probes = {**STORES, "lock": lambda: locks[policy.current().backend].probe()}
    stores = {
        name: {"ok": True, "ms": probed.ms} if probed.ok else {"ok": False, "error": probed.error}
        for name, probed in probe_all(probes, seconds=PROBE_SECONDS).items()
    }
    ok = all(store["ok"] for name, store in stores.items() if name != "cache")
    return JsonResponse({"ok": ok, "stores": stores}, status=200 if ok else 503)


@live_page
def metrics(request: HttpRequest) -> HttpResponse:
    """Export metrics: of all workers if PROMETHEUS_MULTIPROC_DIR is set, else of this process."""
    alerts.update_metrics()
    return HttpResponse(generate_latest(registry()), content_type=CONTENT_TYPE_LATEST)
