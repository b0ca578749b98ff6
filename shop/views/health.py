"""For those who run the shop: is it alive, is it ready, what does it count."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from redis import Redis

from locking import locks, policy
from locking.metrics import registry
from shop.views.decorators import shows

PROBE_SECONDS = 3.0
"""A store that takes longer counts as down."""


@never_cache
@shows
def livez(request: HttpRequest) -> HttpResponse:
    """This process answers."""
    return HttpResponse("ok\n", content_type="text/plain")


@never_cache
@shows
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when every store that a purchase needs answers, else 503; JSON says which does not."""
    probes = {"database": _probe_database, "cache": _probe_cache, "lock": _probe_lock}
    pool = ThreadPoolExecutor(len(probes))
    begun = time.monotonic()
    running = {name: pool.submit(_timed, probe) for name, probe in probes.items()}
    stores: dict[str, dict[str, object]] = {}
    for name, probe in running.items():
        try:
            left = max(0.0, begun + PROBE_SECONDS - time.monotonic())
            stores[name] = {"ok": True, "ms": probe.result(timeout=left)}
        except TooSlow:
            stores[name] = {"ok": False, "error": f"no answer in {PROBE_SECONDS:g} s"}
        except Exception as error:  # noqa: BLE001 - whatever it is, the store is not usable
            stores[name] = {"ok": False, "error": type(error).__name__}
    pool.shutdown(wait=False)  # a probe that hangs ends at its client's own time-out
    ok = all(store["ok"] for store in stores.values())
    return JsonResponse({"ok": ok, "stores": stores}, status=200 if ok else 503)


def _timed(probe: Callable[[], None]) -> float:
    begun = time.monotonic()
    try:
        probe()
    finally:
        connection.close()  # this thread's own
    return round((time.monotonic() - begun) * 1000, 1)


def _probe_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _probe_cache() -> None:
    options = settings.CACHES["default"]["OPTIONS"]
    with Redis.from_url(settings.REDIS_URL, **options) as client:
        client.ping()


def _probe_lock() -> None:
    locks[policy.current().backend].probe()


@never_cache
@shows
def metrics(request: HttpRequest) -> HttpResponse:
    """For Prometheus; of all workers when PROMETHEUS_MULTIPROC_DIR is set, else of this one."""
    return HttpResponse(generate_latest(registry()), content_type=CONTENT_TYPE_LATEST)
