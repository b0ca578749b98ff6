"""Interview questions under /learn/questions/, and what in this project shows each answer.

answers/links.toml has their order and their links; en.toml and zh-hans.toml have the texts.
"""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import escape
from django.utils.safestring import SafeString
from django.utils.translation import get_language

from loadtest.charts.source import Excerpt
from loadtest.scenarios.course import COURSE
from shop.web.decorators import live_page

FOLDER = Path(__file__).with_name("answers")


@live_page
def questions(request: HttpRequest) -> HttpResponse:
    """Show all questions, and the names of other libraries beside ours."""
    return render(request, "learn/questions.html", contents(get_language() or "en"))


@cache
def contents(language: str) -> dict[str, Any]:
    """Return the groups of questions and the tables of names in a language."""
    links, texts = read("links"), read(language)
    tables = {
        library: [(theirs, ours, words(texts["notes"][theirs])) for theirs, ours in names.items()]
        for library, names in links.pop("mapping").items()
    }
    groups = [
        (group, title, [_question(name, own, texts[name]) for name, own in links[group].items()])
        for group, title in texts["groups"].items()
    ]
    return {"groups": groups, "tables": tables}


def read(name: str) -> dict[str, Any]:
    """Return what a file of the folder contains."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def words(text: str) -> SafeString:
    """Return a text as HTML, with code where it has backticks."""
    return SafeString(re.sub("`([^`]+)`", r'<code translate="no">\1</code>', escape(text)))


def _question(name: str, links: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    excerpts = [Excerpt(*place) for place in links.get("code", ())]
    return {
        "name": name,
        "question": words(texts["question"]),
        "answer": [words(part) for part in texts["answer"].strip().split("\n\n")],
        "trap": words(texts["trap"]),
        "steps": [step for step in COURSE if step.name in links.get("steps", ())],
        "commands": links.get("commands", ()),
        "code": [(one.place, "\n".join(one.lines())) for one in excerpts],
    }
