"""Interview questions: equal in both languages, of sixty seconds, and what they name exists."""

import re
import shlex
from typing import Any

import pytest
from django.conf import settings
from django.core.management import get_commands, load_command_class
from django.test import Client
from django.urls import reverse

from loadtest.charts.source import Excerpt
from loadtest.scenarios import SCENARIOS
from loadtest.scenarios.course import COURSE
from loadtest.web import questions

LINKS = questions.read("links")
TABLES = LINKS.pop("mapping")
QUESTIONS: dict[str, dict[str, Any]] = {
    name: one for found in LINKS.values() for name, one in found.items()
}
LANGUAGES = [language for language, _name in settings.LANGUAGES]
SIXTY_SECONDS = {"en": range(120, 181), "zh-hans": range(240, 341)}
"""English words, Chinese characters."""


def length(language: str, text: str) -> int:
    return len(text.split()) if language == "en" else len(re.sub(r"\s", "", text))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_question_has_an_answer_of_sixty_seconds_and_a_trap(language: str) -> None:
    texts = questions.read(language)
    names = {name for library in TABLES.values() for name in library}
    assert texts.pop("groups").keys() == LINKS.keys()
    assert texts.pop("notes").keys() == names
    assert texts.keys() == QUESTIONS.keys()
    for name, one in texts.items():
        assert one.keys() == {"question", "answer", "trap"}, name
        assert length(language, one["answer"]) in SIXTY_SECONDS[language], name
        assert 0 < length(language, one["trap"]) < SIXTY_SECONDS[language].start, name


def parsed(command: str) -> Any:
    program, action, *arguments = shlex.split(command)
    assert program == "manage.py"
    parser = load_command_class(get_commands()[action], action).create_parser(program, action)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_shows_an_answer_exists(name: str) -> None:
    """An excerpt raises ValueError if the code has changed, a parser if it refuses a command."""
    links = QUESTIONS[name]
    assert {step.name for step in COURSE} >= set(links.get("steps", ()))
    for command in links.get("commands", ()):
        assert set(getattr(parsed(command), "names", ())) <= SCENARIOS.keys()
    for place in links.get("code", ()):
        assert 1 <= len(Excerpt(*place).lines()) <= 16
    assert 1 <= sum(map(len, links.values())) <= 3


def test_names_beside_those_of_other_libraries_exist() -> None:
    library = (settings.BASE_DIR / "locking").rglob("*.py")
    known = set(re.findall(r"\w+", " ".join(file.read_text("utf-8") for file in library)))
    known |= {"name", "names", "n", "waitTime", "leaseTime"}
    for ours in (ours for names in TABLES.values() for ours in names.values() if ours):
        if ours.startswith("manage.py"):
            assert parsed(ours)
        else:
            assert set(re.findall(r"\w+", ours)) <= known, ours


@pytest.mark.parametrize("language", LANGUAGES)
def test_page_shows_every_question_with_its_anchor(language: str, client: Client, db: None) -> None:
    page = client.get(reverse("learn-questions"), headers={"accept-language": language}).text
    for name in (*QUESTIONS, *LINKS, "names"):
        assert page.count(f'id="{name}"') == 1
        assert f'href="#{name}"' in page
    assert page.count('class="trap"') == len(QUESTIONS) >= 24
