"""Measure six configurations of gunicorn, interleaved, for docs/measurements/gunicorn.md.

    .venv/bin/python tools/tune.py [ROUNDS]            # 3, in four minutes on two cores

MariaDB and Redis are private; each run is `manage.py lab http`, without the proxy.
"""

import json
import os
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from devservers import MariaDb, Redis  # noqa: E402
from loadtest.bench.purchase.web import WebServer  # noqa: E402
from loadtest.charts import marked  # noqa: E402

PAGE = ROOT / "docs/measurements/gunicorn.md"
# Workers, threads, further options.
VARIANTS: dict[str, tuple[int, int, list[str]]] = {
    "sync 2": (2, 1, ["--worker-class", "sync"]),
    "gthread 1 x 16": (1, 16, []),
    "gthread 2 x 4": (2, 4, []),
    "gthread 2 x 8": (2, 8, []),
    "gthread 2 x 16": (2, 16, []),
    "gthread 4 x 8": (4, 8, []),
}
LOAD = ["--attempts=4000", "--stock=500", "--buyers=800", "--processes=1", "--connections=32"]


def megabytes(web: WebServer) -> float:
    """Return the memory of all its processes, shared pages counted once."""
    files = [Path(f"/proc/{pid}/smaps_rollup") for pid in (web.pid, *web.children())]
    lines = [line for file in files for line in file.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(variant: str) -> tuple[float, float, float]:
    """Return attempts per second, p99 of the purchases in ms, and memory in MB."""
    workers, threads, options = VARIANTS[variant]
    os.environ["MAX_WAITING"] = str(max(1, min(6, threads - 2)))
    with WebServer(workers, config=["--threads", str(threads), *options]) as web:
        command = [sys.executable, "manage.py", "lab", "http", "--json", "--url", web.url, *LOAD]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        report = json.loads(done.stdout)
        if report["verdict"] != "ok":
            sys.exit(f"{variant}: {report['why']}")
        won = report["answers"]["won"]["p99_ms"]
        return report["attempts_per_second"], won, megabytes(web)


def main(rounds: int) -> None:
    with MariaDb() as mariadb, Redis() as redis, TemporaryDirectory() as var:
        (Path(var) / "static").mkdir()
        os.environ.update(
            SHOP_VAR=var,
            DJANGO_SETTINGS_MODULE="shop.settings.lab",
            DATABASE_URL=mariadb.url,
            REDIS_URL=redis.url,
            CACHE_URL=redis.url,
            CELERY_BROKER_URL=redis.url,
            PYTHONPATH=str(ROOT),
            LOG_LEVEL="WARNING",
        )
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, check=True)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in VARIANTS}
        for number in range(rounds):
            names = list(VARIANTS)
            for name in names if number % 2 else reversed(names):
                found[name].append(measure(name))
                print(f"{number + 1}/{rounds} {name}: %.0f/s, %.0f ms, %.0f MB" % found[name][-1])
    lines = ["| workers x threads | attempts/s | won, p99 ms | MB |", "| --- | --- | --- | --- |"]
    for name, runs in found.items():
        rate, won, size = (statistics.median(some) for some in zip(*runs, strict=True))
        lines.append(f"| {name} | {rate:.0f} | {won:.0f} | {size:.0f} |")
    lines += ["", f"Medians of {rounds} rounds, {os.cpu_count()} cores, {date.today()}.", ""]
    print(table := "\n".join(lines))
    marked.write(PAGE, "tune", table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
