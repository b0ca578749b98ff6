"""deploy/helm, rendered by Helm and checked without a cluster."""

import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from podman_compose import var_interpolate
from ruamel.yaml import YAML

from devservers.programs import required
from shop.platform.metrics import WAITING_BUYERS
from tests import programs

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy/helm"
HELM = Path(sys.executable).with_name("helm")
KUBERNETES = "1.37"
OPTIONS = {
    "trial": (),
    "full": ("stores.full=true",),
    "external": (
        "stores.databaseUrl=mysql://shop:$(MYSQL_PASSWORD)@db:3306/shop",
        "stores.redisUrl=rediss://:$(REDIS_PASSWORD)@redis:6379/0",
        "stores.cacheUrl=redis://cache:6379/0",
        "autoscaling.enabled=false",
        "networkPolicy.enabled=false",
        "ingress.enabled=false",
    ),
}
# Compose runs them in one container; the chart has other means.
COMPOSE_ONLY = {"SEED_PASSWORD"}
CHART_ONLY = {"MYSQL_PASSWORD", "REDIS_PASSWORD"}
Objects = dict[tuple[str, str], dict[str, Any]]


def helm(command: str, *options: str) -> subprocess.CompletedProcess[str]:
    values = [part for option in options for part in ("--set", option)]
    return subprocess.run(
        [HELM, *command.split(), CHART, *values], capture_output=True, text=True, check=False
    )


@cache
def render(name: str) -> Objects:
    """Return the objects of a release called `shop`, by kind and name."""
    done = helm("template shop", *OPTIONS[name])
    assert done.returncode == 0, done.stderr
    objects = [one for one in YAML(typ="safe").load_all(done.stdout) if one]
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    return found


def pods(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the component and the pod template of each workload."""
    for (kind, _), one in objects.items():
        if kind in ("Deployment", "StatefulSet", "Job"):
            template = one["spec"]["template"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template


def container(objects: Objects, component: str) -> dict[str, Any]:
    return dict(pods(objects))[component]["spec"]["containers"][0]


def services() -> dict[str, dict[str, Any]]:
    return YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]


@pytest.mark.parametrize(
    "option", ["host=NOT A NAME", "proxy.replicas=0", "stores.databaseUrl=oracle://x", "typo=1"]
)
def test_bad_value_is_refused(option: str) -> None:
    done = helm("template shop", option)
    assert done.returncode != 0
    assert option.split("=")[0].rpartition(".")[2] in done.stderr


@pytest.mark.parametrize("name", OPTIONS)
def test_chart_passes_lint_and_its_objects_follow_the_schema(name: str) -> None:
    done = helm("lint --strict", *OPTIONS[name])
    assert done.returncode == 0, done.stdout
    for one in render(name).values():
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    # The control: the same check finds a planted error.
    planted = deepcopy(render(name)["Deployment", "shop-web"])
    planted["spec"]["template"]["spec"]["containers"][0]["port"] = planted["spec"].pop("selector")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(planted, KUBERNETES, strict=True)


def test_every_compose_service_has_its_counterpart() -> None:
    objects = render("full")
    numbered = re.compile(r"-\d$")
    monitoring = ["monitoring"]  # clusters have their own; the pods say what is to be scraped
    expected = {
        numbered.sub("", name)
        for name, service in services().items()
        if service.get("profiles") != monitoring and name != "backup"  # databases have their own
    }
    assert {component for component, _ in pods(objects)} == expected
    for component in ("redlock", "zookeeper"):
        count = sum(name.startswith(f"{component}-") for name in services())
        assert objects["StatefulSet", f"shop-{component}"]["spec"]["replicas"] == count


@pytest.mark.parametrize("name", ["worker", "consumer", "beat", "mariadb", "redis", "cache"])
def test_commands_are_those_of_compose(name: str) -> None:
    service, one = services()[name], container(render("full"), name)
    words = [word.replace("${REDIS_PASSWORD}", "$(REDIS_PASSWORD)") for word in service["command"]]
    assert one["args"] == words
    if name in ("mariadb", "redis", "cache"):
        assert one["image"] == service["image"]
    if name == "mariadb":
        mine = {given["name"]: given.get("value") for given in one["env"]}
        assert mine == {**service["environment"], "MARIADB_PASSWORD": None}  # of the Secret


def test_environment_is_that_of_compose() -> None:
    variables = dict.fromkeys(("SECRET_KEY", "MYSQL_PASSWORD", "REDIS_PASSWORD"), "x")
    for component in ("web", "worker", "consumer", "beat", "migrate"):
        mine = {
            one["name"]: one.get("value") for one in container(render("full"), component)["env"]
        }
        theirs = services()[component]["environment"]
        if component != "web":  # the number of gunicorn's processes
            theirs = {name: theirs[name] for name in theirs if not name.startswith("WEB_")}
        assert mine.keys() - CHART_ONLY == theirs.keys() - COMPOSE_ONLY, component
        for name in ("PROXY_HOPS", "PROMETHEUS_MULTIPROC_DIR", "METRICS_PORT", "HEARTBEAT_FILE"):
            assert mine[name] == var_interpolate(str(theirs[name]), variables)


def test_urls_name_servers_of_the_chart() -> None:
    objects = render("full")
    values = {one["name"]: one.get("value") for one in container(objects, "web")["env"]}
    for name in ("DATABASE_URL", "REDIS_URL", "CACHE_URL", "REDLOCK_URLS", "ZOOKEEPER_HOSTS"):
        for address in values[name].split(","):
            host, _, port = address.rpartition("@")[2].rpartition("//")[2].partition(":")
            service = objects["Service", host.rpartition(".")[2]]
            assert service["spec"]["ports"][0]["port"] == int(port.split("/")[0]), address
    assert values["REDLOCK_URLS"].count("redis://:$(REDIS_PASSWORD)@") == 5
    assert values["ZOOKEEPER_HOSTS"].count(",") == 2


def test_web_pods_share_the_photos_of_products() -> None:
    """Where the image has their directory, which Compose mounts as well."""
    for name, objects in ((name, render(name)) for name in OPTIONS):
        for component, pod in pods(objects):
            spec = pod["spec"]
            claims = [one.get("persistentVolumeClaim") for one in spec.get("volumes", [])]
            mounts = [one["mountPath"] for one in spec["containers"][0].get("volumeMounts", [])]
            is_web = component == "web"
            assert ({"claimName": "shop-media"} in claims) == is_web, (name, component)
            assert ("/var/lib/shop/media" in mounts) == is_web
        claim = objects["PersistentVolumeClaim", "shop-media"]
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert services()["web"]["volumes"] == ["media:/var/lib/shop/media"]
    assert "mkdir /var/lib/shop/media" in (ROOT / "Dockerfile").read_text()


def test_external_stores_start_no_server_of_the_chart() -> None:
    objects = render("external")
    assert not [kind for kind, _ in objects if kind == "StatefulSet"]
    values = {one["name"]: one.get("value") for one in container(objects, "web")["env"]}
    assert values["DATABASE_URL"] == "mysql://shop:$(MYSQL_PASSWORD)@db:3306/shop"
    names = [one["name"] for one in container(objects, "web")["env"]]
    assert names.index("MYSQL_PASSWORD") < names.index("DATABASE_URL")  # or it is not expanded
    assert names.index("REDIS_PASSWORD") < names.index("REDIS_URL")
    hook = objects["Job", "shop-migrate-1"]["metadata"]["annotations"]["helm.sh/hook"]
    assert hook == "pre-install,pre-upgrade"


def test_secrets_are_in_no_object() -> None:
    for objects in map(render, OPTIONS):
        assert not [kind for kind, _ in objects if kind == "Secret"]
        for component in ("web", "worker", "consumer", "beat", "migrate"):
            for one in container(objects, component)["env"]:
                if one["name"] == "SECRET_KEY" or one["name"].endswith("_PASSWORD"):
                    assert one["valueFrom"]["secretKeyRef"]["name"] == "seckill"


def test_selectors_find_pods() -> None:
    objects = render("full")
    labels = [template["metadata"]["labels"] for _, template in pods(objects)]
    for (kind, name), one in objects.items():
        spec = one.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if not selector or kind == "Job":
            continue
        wanted = selector.get("matchLabels", selector)
        assert [one for one in labels if wanted.items() <= one.items()], (kind, name)


def test_every_lasting_pod_has_a_probe_a_budget_and_a_limit() -> None:
    objects = render("full")
    for component, template in pods(objects):
        one = template["spec"]["containers"][0]
        assert {"cpu", "memory"} <= one["resources"]["limits"].keys(), component
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        if component != "migrate":
            assert "livenessProbe" in one or "readinessProbe" in one, component
            assert ("PodDisruptionBudget", f"shop-{component}") in objects


def test_every_port_has_a_network_policy() -> None:
    objects = render("full")
    for component, template in pods(objects):
        labels = template["metadata"]["labels"]
        ports = {port["name"] for port in template["spec"]["containers"][0].get("ports", [])}
        admitted = set()
        for (kind, _), one in objects.items():
            spec = one.get("spec", {})
            if kind != "NetworkPolicy" or not _selects(spec["podSelector"], labels):
                continue
            rules = spec.get("ingress", [])
            admitted |= {port["port"] for rule in rules for port in rule["ports"]}
        assert ports <= admitted, component


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    within = all(
        labels[one["key"]] in one["values"] for one in selector.get("matchExpressions", [])
    )
    return within and selector["matchLabels"].items() <= labels.items()


def test_autoscaling_follows_metrics_that_exist() -> None:
    objects = render("trial")
    named = set()
    for (kind, name), one in objects.items():
        if kind == "HorizontalPodAutoscaler":
            assert ("Deployment", name) in objects
            assert "replicas" not in objects["Deployment", name]["spec"]
            for metric in one["spec"]["metrics"]:
                detail = metric[metric["type"].lower()]
                named |= {detail["metric"]["name"]} if "metric" in detail else set()
    assert named == {"shop_waiting_buyers", "shop_oldest_reservation_seconds"}
    assert WAITING_BUYERS.describe()[0].name in named
    assert "shop_oldest_reservation_seconds" in (ROOT / "deploy/alerts.yml").read_text()


@pytest.mark.parametrize(("webs", "proxies", "rate"), [(2, 2, 10), (20, 2, 100)])
def test_all_proxies_let_five_sign_ins_a_second_pass_for_each_web_process(
    webs: int, proxies: int, rate: int
) -> None:
    """Two processes per pod; each proxy counts by itself."""
    done = helm("template shop", f"processes.web.replicas={webs}", f"proxy.replicas={proxies}")
    assert f"zone=hashes:32k rate={rate}r/s;" in done.stdout, done.stderr


def test_nginx_accepts_the_rendered_configuration(tmp_path: Path) -> None:
    text = render("trial")["ConfigMap", "shop-proxy"]["data"]["nginx.conf"]
    assert "set $shop shop-web.default.svc.cluster.local:8000;" in text
    assert "set_real_ip_from 10.0.0.0/8;" in text
    resolver = "resolver kube-dns.kube-system.svc.cluster.local "
    assert resolver in text
    config = tmp_path / "nginx.conf"
    config.write_text(text.replace(resolver, "resolver 127.0.0.1 "))
    globals_ = f"pid {tmp_path}/pid; error_log stderr;"
    programs.output(required("nginx"), "-t", "-c", config, "-p", tmp_path, "-g", globals_)
