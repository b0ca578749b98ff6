"""The dashboard and the alerts name what the shop counts; in promtool, each alert fires alone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase
from ruamel.yaml import YAML

import locking.metrics
import shop.administration.alerts
import shop.platform.metrics
from devservers.programs import required
from tests import programs

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
ALERTS = DEPLOY / "alerts.yml"
BOARD = json.loads((DEPLOY / "grafana.json").read_text())
RULES: list[dict[str, Any]] = [
    rule for group in YAML(typ="safe").load(ALERTS)["groups"] for rule in group["rules"]
]
ASKED = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in BOARD["panels"]
        for target in panel["targets"]
    },
}
OURS = r"\b(?:locking|shop)_\w+"


def counted() -> dict[str, set[str]]:
    """Every sample that the shop exposes, with the labels it has."""
    labels: dict[str, set[str]] = {}
    for owner in {locking.metrics, shop.administration.alerts, shop.platform.metrics}:
        for metric in vars(owner).values():
            for family in metric.describe() if isinstance(metric, MetricWrapperBase) else ():
                own = set(metric._labelnames)
                ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
                for end in ends.get(family.type, ("",)):
                    labels[family.name + end] = own | ({"le"} if end == "_bucket" else set())
    return labels


def test_names_and_labels_exist() -> None:
    known = counted()
    for asked, said in ASKED.items():
        names = set(re.findall(OURS, said))
        assert names, asked
        assert names <= known.keys(), asked
        labels = set(re.findall(r"[{,](\w+)(?:=|!=)", said))
        for some in re.findall(r"by \(([\w, ]+)\)", said):
            labels |= set(some.split(", "))
        assert labels <= set().union(*(known[name] for name in names)), asked


def test_every_metric_and_alert_is_documented() -> None:
    page = (DEPLOY.parent / "docs/reference/metrics.md").read_text()
    names = {re.sub("_(bucket|sum|count)$", "", name) for name in counted()}
    names |= {rule["alert"] for rule in RULES}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_nothing_that_is_counted_is_left_out_of_the_dashboard() -> None:
    shown = " ".join(ASKED[name] for name in ASKED)
    families = {re.sub("_(total|bucket|sum|count)$", "", name) for name in counted()}
    assert {family for family in families if family not in shown} == set()


def test_the_first_of_what_is_rare_is_seen_to_grow() -> None:
    """A series that appears at 1 has not grown for Prometheus, and raises no alarm."""
    assert of("shop_http_responses_total", status="500") is not None
    locking.metrics.acquired("none", "rare:1", 0.0)
    assert of("locking_lost_total", backend="none", kind="rare") == 0
    locking.metrics.job("rare", "done")
    assert of("locking_job_runs_total", task="rare", outcome="failed") == 0


def of(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_an_alarm_at_silence_does_not_need_a_series() -> None:
    quiet = [rule["expr"] for rule in RULES if rule["expr"].endswith("== 0")]
    assert quiet
    assert all("or vector(0)) ==" in expr for expr in quiet)


def test_kinds_are_bounded() -> None:
    """Names that users choose must not become series without end."""
    kinds = [locking.metrics.kind_of(f"kind{number}:1") for number in range(40)]
    assert kinds[:32] == [f"kind{number}" for number in range(32)]
    assert kinds[32:] == ["other"] * 8
    assert locking.metrics.kind_of("kind3:2") == "kind3"


# Series of a shop that works, at the edge of what raises an alert: a value each 15 s.
HEALTHY = {
    "shop_inconsistent_sales": "0x400",
    "shop_oldest_reservation_seconds": "60x400",
    "shop_payment_mismatches_total": "3x400",
    "shop_oldest_refund_seconds": "3600x400",
    "shop_lock_nodes_down": "0x400",
    "shop_redis_memory_ratio": "0.8x400",
    "shop_clock_difference_seconds": "-1x400",
    'shop_http_responses_total{status="200"}': "0+98x400",
    'shop_http_responses_total{status="500"}': "7x400",
    'shop_http_responses_total{status="503"}': "0+2x400",
    'shop_http_request_seconds_bucket{le="2"}': "0+99x400",
    'shop_http_request_seconds_bucket{le="5"}': "0+100x400",
    'shop_http_request_seconds_bucket{le="+Inf"}': "0+100x400",
    'locking_attempts_total{backend="redis",kind="sale",outcome="acquired"}': "0+90x400",
    'locking_attempts_total{backend="redis",kind="sale",outcome="timeout"}': "0+10x400",
    'locking_attempts_total{backend="redis",kind="sale",outcome="unavailable"}': "5x400",
    'locking_lost_total{backend="redis",kind="sale"}': "2x400",
    'locking_job_runs_total{task="audit",outcome="done"}': "0+1x400",
    'locking_job_runs_total{task="audit",outcome="failed"}': "4x400",
}
# What differs when an alert fires, an hour and 15 minutes after the start.
BROKEN = {
    "StockInconsistent": {"shop_inconsistent_sales": "0x290 1x20"},
    "OrderWriterBacklog": {"shop_oldest_reservation_seconds": "0x290 61x20"},
    "PaymentMismatch": {"shop_payment_mismatches_total": "3x290 4x20"},
    "RefundOverdue": {"shop_oldest_refund_seconds": "0x290 3601x20"},
    "RedisMemory": {"shop_redis_memory_ratio": "0x290 0.81x20"},
    "ClockDifference": {"shop_clock_difference_seconds": "0x290 -1.1x20"},
    "ServerErrors": {'shop_http_responses_total{status="500"}': "7x290 8x20"},
    "ManyUnavailableResponses": {'shop_http_responses_total{status="503"}': "0+3x400"},
    "SlowResponses": {'shop_http_request_seconds_bucket{le="2"}': "0+98x400"},
    "LockStoreUnavailable": {
        'locking_attempts_total{backend="redis",kind="sale",outcome="unavailable"}': "5x290 6+1x20"
    },
    "LockServerDown": {"shop_lock_nodes_down": "0x290 1x20"},
    "NoWebServer": {
        'shop_http_responses_total{status="200"}': "0+98x270",
        'shop_http_responses_total{status="503"}': "0+2x270",
    },
    "LockTimeouts": {
        'locking_attempts_total{backend="redis",kind="sale",outcome="timeout"}': "0+11x400"
    },
    "LeasesLost": {'locking_lost_total{backend="redis",kind="other"}': "_x290 1x20"},
    "JobFailed": {'locking_job_runs_total{task="other",outcome="failed"}': "_x290 1x20"},
    "NoScheduledJobs": {'locking_job_runs_total{task="audit",outcome="done"}': "0+1x270"},
}


def firing(*alerts: str) -> dict[str, Any]:
    """Return promtool's test that these alerts fire and no other does."""
    changes = {series: values for alert in alerts for series, values in BROKEN[alert].items()}
    return {
        "interval": "15s",
        "input_series": [
            {"series": series, "values": values} for series, values in (HEALTHY | changes).items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "75m",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts
                ],
            }
        ],
    }


@pytest.fixture(scope="module")
def promtool() -> str:
    return required("promtool")


def run(promtool: str, folder: Path, *tests: dict[str, Any]) -> str:
    """Return what promtool finds wrong, which is nothing if the tests hold."""
    file = folder / "tests.yml"
    YAML().dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}, file)
    code, printed = programs.run(promtool, "test", "rules", file)
    return printed if code else ""


def test_each_alert_has_its_condition() -> None:
    assert {rule["alert"] for rule in RULES} == BROKEN.keys()


def test_each_alert_fires_alone(promtool: str, tmp_path: Path) -> None:
    assert run(promtool, tmp_path, firing(), *(firing(alert) for alert in BROKEN)) == ""


def test_alert_that_does_not_fire_is_noticed(promtool: str, tmp_path: Path) -> None:
    told = firing("RedisMemory")
    told["input_series"] = firing()["input_series"]
    assert "RedisMemory" in run(promtool, tmp_path, told)
