"""The dashboard and the alert rules name what the shop really counts."""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase
from ruamel.yaml import YAML

import locking.metrics
import shop.administration.alerts
import shop.platform.metrics

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
BOARD = json.loads((DEPLOY / "grafana.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in YAML(typ="safe").load(DEPLOY / "alerts.yml")["groups"]
    for rule in group["rules"]
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
