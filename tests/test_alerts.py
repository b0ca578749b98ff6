"""deploy/alerts.yml in promtool: each alert fires on its condition, and on no other."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from devservers.programs import required
from tests import programs

ALERTS = Path(__file__).resolve().parent.parent / "deploy" / "alerts.yml"
# Series of a shop that works, at the edge of what raises an alert: a value each 15 s.
HEALTHY = {
    "shop_inconsistent_sales": "0x400",
    "shop_oldest_reservation_seconds": "60x400",
    "shop_payment_mismatches_total": "3x400",
    "shop_oldest_refund_seconds": "3600x400",
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
    YAML().dump({"rule_files": [str(ALERTS)], "evaluation_interval": "15s", "tests": tests}, file)
    code, printed = programs.run(promtool, "test", "rules", file)
    return printed if code else ""


def test_each_alert_has_its_condition() -> None:
    groups = YAML(typ="safe").load(ALERTS)["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == BROKEN.keys()


def test_each_alert_fires_alone(promtool: str, tmp_path: Path) -> None:
    assert run(promtool, tmp_path, firing(), *(firing(alert) for alert in BROKEN)) == ""


def test_alert_that_does_not_fire_is_noticed(promtool: str, tmp_path: Path) -> None:
    told = firing("RedisMemory")
    told["input_series"] = firing()["input_series"]
    assert "RedisMemory" in run(promtool, tmp_path, told)
