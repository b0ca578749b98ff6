"""The page of a running load test: the curve, the buyers, and one announcement."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from loadtest.charts.curves import buyers as buyers_as_signs
from loadtest.load.plan import Plan
from loadtest.models import LabRun
from loadtest.web import runs
from shop.models import User

PLAN = Plan(backends=("none", "redis"), disciplines=("naive",), buyers=60, stock=5)
HTMX = {"HX-Request": "true"}


def moment(sold: int, served: int, **other: Any) -> dict[str, Any]:
    """Return the saved progress of a run under `none`."""
    run = {
        **{"backend": "none", "discipline": "naive", "repeat": 1, "buyers": 60},
        **{"marks": [], "requested": "none"},
        **{"stock": 5, "sold": sold, "served": served, "oversold": max(0, sold - 5)},
        "sold_at": [(0.0, 0), (0.5, sold)],
    }
    return {"done": served, "of": 120, "per_second": 9, "left": 1, "now": "n", "run": run | other}


@pytest.fixture
def running(db: None) -> Iterator[LabRun]:
    """A run whose worker is alive."""
    run = LabRun.objects.create(plan=asdict(PLAN), state=LabRun.State.RUNNING)
    with runs.lock_of(run.pk):
        yield run


def polled(client: Client, run: LabRun, said: str = "", ready: str = "", **progress: Any) -> str:
    LabRun.objects.filter(pk=run.pk).update(**progress)
    return client.get(f"{run.get_absolute_url()}?oversold={said}&ready={ready}", headers=HTMX).text


def test_page_shows_units_and_buyers_in_words_and_pictures(client: Client, running: LabRun) -> None:
    page = polled(client, running, progress=moment(sold=8, served=30))
    assert "Without a lock: 8 sold of 5 in stock." in page
    for words in ("bought: 5", "bought beyond the stock: 3", "refused: 22", "waiting: 30"):
        assert f"{words}</li>" in page
    assert page.count("<svg") == 1
    assert "no lock: 8 / 5" in page
    last = {**moment(sold=8, served=60)["run"], "verdict": "oversold", "why": ""}
    between = polled(client, running, progress=moment(8, 60) | {"run": None, "over": [last]})
    assert "Without a lock: 8 sold of 5 in stock." in between
    assert "refused: 52</li>" in between
    assert between.count("<svg") == 1, "the last run stays until the next one begins"
    whole = client.get(running.get_absolute_url()).text
    assert whole.count('role="status"') == 1, "a poll announces nothing"
    assert 'http-equiv="refresh" content="2"' in whole
    chinese = client.get(running.get_absolute_url(), headers={"accept-language": "zh-hans"}).text
    assert "买到（超卖）：3" in chinese
    next_one = moment(1, 1, repeat=2) | {"over": [last]}
    assert ">8</text>" in polled(client, running, progress=next_one), "the scale stays"


def test_page_shows_what_is_being_started(client: Client, running: LabRun) -> None:
    """Up to the first figures; the last step has no mark yet."""
    page = polled(client, running, progress={"starting": ["redis", "tables"]})
    steps = re.findall(r"<li>(.*?)</li>", page)
    assert steps[-2:] == [
        'The test&#x27;s own Redis starts <span class="good">✓</span>',
        "The tables are created …",
    ]
    assert len(steps) == 4
    assert polled(client, running, state=LabRun.State.WAITING).count("<li>") == 1
    assert "Redis starts" not in polled(client, running, progress=moment(sold=1, served=1))


def test_overselling_is_announced_once(client: Client, running: LabRun) -> None:
    first = polled(client, running, progress=moment(sold=5, served=9))
    assert "#announce" not in first
    assert "?oversold=&quot;" not in first
    second = polled(client, running, progress=moment(sold=6, served=9))
    assert '<p hx-swap-oob="innerHTML:#announce">Without a lock: 6 sold of 5' in second
    assert "?oversold=none-naive-1" in second
    assert "#announce" not in polled(client, running, "none-naive-1")
    over = polled(client, running, "none-naive-1", state=LabRun.State.STOPPED, slot=None)
    assert '#announce">Load test: stopped</p>' in over


@pytest.mark.parametrize(
    ("buyers", "sold", "served", "signs"),
    [
        (60, 8, 30, [5, 3, 22, 30]),
        (60, 0, 0, [0, 0, 0, 60]),
        (200, 200, 200, [5, 195, 0, 0]),
        (2000, 1000, 1500, [1, 99, 50, 50]),
        (2000, 6, 2000, [1, 1, 199, 0]),
    ],
)
def test_each_sign_is_one_buyer_or_several(
    buyers: int, sold: int, served: int, signs: list[int]
) -> None:
    found = buyers_as_signs(moment(sold, served, buyers=buyers)["run"])
    assert [len(state["signs"]) for state in found["states"]] == signs
    assert [state["signs"][:1] or state["sign"] for state in found["states"]] == list("●▲✕○")
    assert sum(state["count"] for state in found["states"]) == buyers
    assert found["per_sign"] == (10 if buyers == 2000 else 1)


def test_faults_are_offered_to_staff_and_the_starter(client: Client, running: LabRun) -> None:
    """Only those that can hit a lock of the test; Stop and they lie outside the figures."""
    assert "Kill Redis" not in client.get(running.get_absolute_url()).text
    assert request_fault(client, running, "kill-redis").status_code == 403
    client.force_login(User.objects.create(username="li"))
    assert request_fault(client, running, "kill-redis").status_code == 403
    LabRun.objects.filter(pk=running.pk).update(created_by=User.objects.get(username="li"))
    page = client.get(running.get_absolute_url()).text
    for button in ("Pause the holder", "Kill the holder", "Kill Redis", "Cut replication"):
        assert f"{button}</button>" in page
    assert "Kill ZooKeeper" not in page
    assert page.index("Kill Redis") > page.index("</div>", page.index('id="figures"'))
    assert 'value="pause-holder"' not in polled(client, running, progress=moment(1, 1))
    assert page.count("disabled>") == 4, "no buyer holds a lock yet"
    locked = polled(client, running, progress=moment(1, 1, backend="redis"))
    assert locked.count('name="fault"') == 4
    assert "disabled" not in locked
    ready = "pause-holder,kill-holder,kill-redis,cut-replication"
    assert 'value="pause-holder"' not in polled(client, running, ready=ready)
    assert polled(client, running, ready=ready, progress=moment(5, 60)).count("disabled>") == 4
    LabRun.objects.filter(pk=running.pk).update(plan={**asdict(PLAN), "backends": ["none"]})
    assert "Kill" not in client.get(running.get_absolute_url()).text, "no lock has no holder"


def request_fault(client: Client, run: LabRun, fault: str, **headers: str) -> Any:
    return client.post(reverse("lab-fault", args=[run.pk]), {"fault": fault}, headers=headers)


def test_visitor_who_started_the_preset_may_request_a_fault(client: Client, db: None) -> None:
    assert client.post(reverse("lab-start")).status_code == 302
    run = LabRun.objects.get()
    assert request_fault(client, run, "kill-redis", **HTMX).status_code == 200
    assert request_fault(Client(), run, "kill-redis").status_code == 403
    csrf = Client(enforce_csrf_checks=True)
    csrf.cookies = client.cookies
    assert request_fault(csrf, run, "kill-redis").status_code == 403
    assert client.get(reverse("lab-fault", args=[run.pk])).status_code == 405


def test_request_answers_what_happens_next(client: Client, running: LabRun) -> None:
    LabRun.objects.filter(pk=running.pk).update(created_by=User.objects.create(username="li"))
    client.force_login(User.objects.get(username="li"))
    assert "cannot hit any lock" in request_fault(client, running, "kill-zookeeper", **HTMX).text
    told = request_fault(client, running, "kill-redis", **HTMX).text
    assert told.startswith('<p hx-swap-oob="innerHTML:#announce">Requested.'), "not in the note"
    assert "Requested: Kill Redis." in polled(client, running, progress=moment(1, 1))
    assert "still on its way" in request_fault(client, running, "pause-holder", **HTMX).text
    running.refresh_from_db()
    assert running.requested_fault == "kill-redis"
    LabRun.objects.filter(pk=running.pk).update(state=LabRun.State.DONE, slot=None)
    over = client.post(
        reverse("lab-fault", args=[running.pk]), {"fault": "kill-redis"}, follow=True
    )
    assert "Nothing was injected: the run has ended." in over.text


def test_scenario_has_its_own_faults(client: Client, db: None) -> None:
    assert client.post(reverse("lab-play", args=["no-lock"])).status_code == 302
    told = request_fault(client, LabRun.objects.get(), "kill-redis", **HTMX)
    assert (told.status_code, "cannot hit any lock" in told.text) == (200, True)


@pytest.mark.parametrize("state", [LabRun.State.FAILED, LabRun.State.STOPPED])
def test_failed_run_can_be_started_again(client: Client, db: None, state: str) -> None:
    """A scenario or the preset by anyone, any other plan by staff."""

    def button(plan: dict[str, Any], kind: str = LabRun.Kind.RUN) -> str:
        run = LabRun.objects.create(plan=plan, kind=kind, state=state, slot=None)
        page = client.get(run.get_absolute_url()).text
        found = re.search(r'action="(/lab/[^"]*)" data-send-once', page)
        return found[1].replace(str(run.pk), "ID") if found else ""

    scenario = {"scenario": "no-lock"}
    play = reverse("lab-play", args=["no-lock"])
    preset = json.loads(json.dumps(asdict(runs.OVERSELL_IN_TEN_SECONDS)))
    assert button(scenario, LabRun.Kind.SCENARIO) == play
    assert button(preset) == reverse("lab-start")
    assert button(asdict(PLAN)) == ""
    staff = User.objects.create(username="amy", is_staff=True)
    staff.user_permissions.add(Permission.objects.get(codename="add_labrun"))
    client.force_login(staff)
    assert button(asdict(PLAN)) == "/lab/runs/ID/again/"
