"""Links to results in other sites: Open Graph tags and a picture in the language of the page."""

import re
from dataclasses import asdict
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from loadtest.load.plan import Plan
from loadtest.models import LabRun
from loadtest.scenarios.course import COURSE
from loadtest.scenarios.export import recorded
from tests.loadtest.charts.test_export import load_test

pytestmark = pytest.mark.django_db
PLAN = Plan(backends=("none", "redis"), disciplines=("naive",))


def finished(kind: str) -> LabRun:
    report = load_test(PLAN)
    plan = asdict(PLAN)
    if kind == LabRun.Kind.SCENARIO:
        plan = {"scenario": "holder-paused"}
        report = {"versions": {}, "scenarios": [recorded()["results"]["holder-paused"]]}
    state = LabRun.State.DONE
    return LabRun.objects.create(kind=kind, plan=plan, state=state, slot=None, report=report)


def tags(page: str) -> dict[str, str]:
    found = re.findall(r'<meta property="og:([\w:]+)" content="([^"]*)">', page)
    assert len(found) == len(dict(found))
    return {name: unescape(content) for name, content in found}


def check(client: Client, path: str) -> dict[str, str]:
    """Return the tags of a page, after fetching its picture without cookies."""
    for language, locale in (("en", "en_GB"), ("zh-hans", "zh_CN")):
        found = tags(client.get(path, headers={"accept-language": language}).text)
        assert found["locale"] == locale
        assert found["title"]
        assert found["description"]
        assert found["url"] == f"http://testserver{path}"
        assert found["image"].startswith("http://testserver/")
        assert language in found["image"]
        picture = Client().get(found["image"].removeprefix("http://testserver"))
        assert picture.content.startswith(b"\x89PNG")
        assert picture["Cache-Control"] == "public, max-age=3600"
        assert "Cookie" not in picture.get("Vary", "")
    return found


def test_results_and_the_course_have_a_title_and_a_picture(client: Client) -> None:
    for kind, title in (
        (LabRun.Kind.RUN, "Without a lock: 120,000 sold of 50"),
        (LabRun.Kind.SCENARIO, "The holder is paused past its lease"),
    ):
        path = finished(kind).get_absolute_url()
        check(client, path)
        english = tags(client.get(path, headers={"accept-language": "en"}).text)
        assert english["title"].startswith(title)
    for path in (reverse("learn-grid"), reverse("learn-step", args=[COURSE[0].name])):
        check(client, path)


def test_picture_of_nothing_is_not_found(client: Client) -> None:
    run = LabRun.objects.create(plan=asdict(PLAN))
    page = client.get(run.get_absolute_url()).text
    assert "og:image" not in page
    for address in (
        reverse("lab-preview", args=[run.pk, "en"]),
        reverse("learn-preview", args=["earthquake", "en"]),
        reverse("learn-preview", args=["no-lock", "xx"]),
    ):
        assert client.get(address).status_code == 404


def test_scenario_that_did_not_run_has_a_picture_without_timelines(client: Client) -> None:
    run = finished(LabRun.Kind.SCENARIO)
    assert run.report is not None
    (result,) = run.report["scenarios"]
    missing = result | {"verdict": "not-run", "why": "java is not installed", "halves": []}
    LabRun.objects.update(report=run.report | {"scenarios": [missing]})
    check(client, run.get_absolute_url())
    for suffix in ("png", "html", "csv", "json"):
        assert client.get(reverse("lab-file", args=[run.pk, suffix])).status_code == 200


def test_scenario_has_a_csv_and_a_load_test_an_svg(client: Client) -> None:
    scenario, run = finished(LabRun.Kind.SCENARIO), finished(LabRun.Kind.RUN)
    both = {"png": b"\x89PNG", "html": b"<!doc", "json": b"{"}
    for one, heads in (
        (scenario, both | {"csv": b"guard,"}),
        (run, both | {"csv": b"backend,", "svg": b"<svg"}),
    ):
        page = client.get(one.get_absolute_url()).text
        for suffix, head in heads.items():
            address = reverse("lab-file", args=[one.pk, suffix])
            assert f'href="{address}"' in page
            file = client.get(address)
            assert file.content.lstrip().startswith(head)
            assert f'.{suffix}"' in file["Content-Disposition"]
        assert client.get(reverse("lab-file", args=[one.pk, "exe"])).status_code == 404
