"""One dataclass gives the options, the form, the limits and the command line of an experiment."""

import shlex
from argparse import ArgumentParser
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from loadtest.kernel.params import Params, PlanError, param
from loadtest.load.http.load import HttpLoad
from loadtest.load.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Sample(Params):
    experiment = "sample"
    count: int = param(3, "number of things", limits=(1, 9), label="Count")
    share: float | None = param(None, "share of them", limits=(0, 1))
    names: tuple[str, ...] = param(("a",), "name", choices=("a", "b"), option="name")
    kind: str = param("plain", "a fancy one", option="fancy", const="fancy")


def parsed(params: type[Params], *words: str) -> Any:
    parser = ArgumentParser()
    params.add_options(parser)
    return params.of(vars(parser.parse_args(words)))


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ([], {}),
        (["--count", "9", "--share", "0.5"], {"count": 9, "share": 0.5}),
        (["--name", "b", "--name", "a", "--fancy"], {"names": ("b", "a"), "kind": "fancy"}),
    ],
)
def test_options_give_the_fields(words: list[str], changed: dict[str, Any]) -> None:
    assert asdict(parsed(Sample, *words)) == {**asdict(Sample()), **changed}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, "--count must be between 1 and 9"),
        ({"share": float("nan")}, "--share must be between"),
        ({"names": ("a", "a")}, "each --name only once"),
        ({"names": ["a", "a"]}, "each --name only once"),  # of a form
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Sample(**wrong)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(backends=("mysql_session",), store="mariadb", fault="pause-holder", strikes=2, at=0.2),
    ],
)
def test_command_line_of_a_plan_gives_the_same_plan(plan: Plan) -> None:
    python, manage, lab, run, *words = shlex.split(plan.command())
    assert (python, manage, lab, run) == (".venv/bin/python", "manage.py", "lab", "run")
    assert parsed(Plan, *words) == plan


def test_database_and_buyers_that_are_not_named_follow_from_the_rest() -> None:
    assert parsed(Plan, "--backend", "postgresql_session").store == "postgresql"
    assert parsed(Plan, "--fault", "kill-database").store == "mariadb"
    parser = ArgumentParser()
    HttpLoad.add_options(parser)
    options = vars(parser.parse_args(["--stock", "10"]))
    assert HttpLoad.of(options, host="h", port=1).buyers == 20
