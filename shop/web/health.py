"""For those who run the shop: is it alive, is it ready, what does it count."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from locking.metrics import registry
from shop.administration import alerts
from shop.operations import probes as probing
from shop.web.decorators import public_page

PROBE_SECONDS = 3.0
"""A store that takes longer counts as down."""


@never_cache
@public_page
def livez(request: HttpRequest) -> HttpResponse:
    """This process answers."""
    return HttpResponse("ok\n", content_type="text/plain")


@never_cache
@public_page
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when every store that a purchase needs answers, else 503; JSON says which does not."""
    probes = {
        "database": probing.database,
        "cache": probing.cache,
        "lock": probing.lock_in_force,
    }
    stores = {
        name: {"ok": True, "ms": probed.ms} if probed.ok else {"ok": False, "error": probed.error}
        for name, probed in probing.probe_all(probes, seconds=PROBE_SECONDS).items()
    }
    ok = all(store["ok"] for store in stores.values())
    return JsonResponse({"ok": ok, "stores": stores}, status=200 if ok else 503)


@never_cache
@public_page
def metrics(request: HttpRequest) -> HttpResponse:
    """For Prometheus; of all workers when PROMETHEUS_MULTIPROC_DIR is set, else of this one."""
    alerts.tell_metrics()
    return HttpResponse(generate_latest(registry()), content_type=CONTENT_TYPE_LATEST)
