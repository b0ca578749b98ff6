"""The parameters of an experiment, declared once as a dataclass.

The fields of a `Params` give the options of its command, the fields of its form, the checks of its
limits, the settings of its report, and the command line that runs the same again.
"""

import types
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

from django import forms
from django.utils.functional import Promise

Text = str | Promise
MOST_IN_USAGE = 3
"""Choices that the usage of an option lists instead of its NAME."""


class PlanError(ValueError):
    """An experiment cannot be run with these parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """The meaning of a field; one without choices or a const is a number."""

    help: Text = ""
    """Empty: the choices describe themselves."""
    limits: tuple[float, float] | None = None
    choices: Mapping[str, Text] | Sequence[str] = ()
    option: str = ""
    """The option, if it is not named after the field; more names follow after spaces."""
    const: Any = None
    """The value that the option gives, which then takes none."""
    default_text: str = ""
    """The default in words."""
    is_named: bool = False
    """The command line names it even if it has its default."""
    label: Text = ""
    """The label in the form; a field without one is not in the form."""
    note: Text = ""
    """The help text in the form."""

    def in_words(self, value: Any) -> str:
        """Return a value, or a list of them, as the form shows it."""
        words = self.choices if isinstance(self.choices, Mapping) else {}
        values = value if isinstance(value, list | tuple) else (value,)
        shown = (f"{one:,}" if type(one) is int else words.get(one, one) for one in values)
        return " · ".join(map(str, shown))


def param(default: Any = MISSING, help: Text = "", **about: Any) -> Any:
    """Return the field of a dataclass with a `Param` of these arguments."""
    return field(default=default, metadata={"param": Param(help=help, **about)})


class Params:
    """The base of a dataclass of parameters. Raise PlanError for values that cannot be run."""

    experiment: ClassVar[str]
    """The words after `manage.py lab`, for a command line."""

    def __post_init__(self) -> None:
        for one, about in self.about():
            value, option = getattr(self, one.name), options_of(one, about)[0]
            least, most = about.limits or (0, 0)
            if about.limits and value is not None and not least <= value <= most:
                raise PlanError(f"{option} must be between {least:,} and {most:,}.")
            if isinstance(value, list | tuple) and len(set(value)) < len(value):
                raise PlanError(f"Name each {option} only once.")
        self.check()

    def check(self) -> None:
        """Raise PlanError for combinations that cannot be run."""

    @classmethod
    def about(cls) -> Iterator[tuple[Field[Any], Param]]:
        """Yield the fields that have an option."""
        for one in fields(cls):  # type: ignore[arg-type]
            if about := one.metadata.get("param"):
                yield one, about

    @classmethod
    def add_options(cls, parser: Any, wanted: Callable[[str], bool] = bool) -> None:
        """Add an option for each wanted field to a parser or a group; left out, it gives None."""
        for one, about in cls.about():
            if not wanted(one.name):
                continue
            kind, is_list = _kind(one)
            given: dict[str, Any] = {"action": "store_const", "const": about.const}
            if about.const is None:
                given = {"action": "append" if is_list else "store", "type": kind}
                given |= {"choices": about.choices} if about.choices else {}
                if is_list or len(about.choices) > MOST_IN_USAGE:
                    given["metavar"] = "NAME"
            text = str(about.help)
            if not text and isinstance(about.choices, Mapping):
                text = "; ".join(f"{name}: {words}" for name, words in about.choices.items())
            if is_list:
                text += f", may be repeated: {', '.join(about.choices)}"
            if about.default_text or (type(one.default) in (int, float) and about.const is None):
                text += f" (default: {about.default_text or one.default})"
            parser.add_argument(*options_of(one, about), dest=one.name, help=text, **given)

    @classmethod
    def of(cls, options: Mapping[str, Any], **more: Any) -> Self:
        """Return the parameters that the options of a command give."""
        names = [one.name for one, _about in cls.about()]
        given = {name: options[name] for name in names if options.get(name) is not None}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**{**given, **lists, **more})

    def command(self) -> str:
        """Return the command line with the same parameters."""
        words = [f".venv/bin/python manage.py lab {self.experiment}"]
        for one, about in self.about():
            value = getattr(self, one.name)
            if about.is_named or value != one.default:
                values = value if _kind(one)[1] else (value,)
                words += [f"{options_of(one, about)[0]} {text}" for text in values]
        return " ".join(words)

    @classmethod
    def form_fields(cls) -> dict[str, forms.Field]:
        """Return the fields of a form, for those that have a label."""
        return {one.name: _form_field(one, about) for one, about in cls.about() if about.label}


def _kind(one: "Field[Any]") -> tuple[type, bool]:
    """Return the type of a field's value, or of its items and True."""
    kinds = get_args(one.type) or (one.type,)
    kind: Any = next(kind for kind in kinds if kind is not types.NoneType)
    return kind, Ellipsis in kinds


def options_of(one: "Field[Any]", about: Param) -> list[str]:
    """Return the names of an option."""
    return [f"--{name}" for name in (about.option or one.name.replace("_", "-")).split()]


def _form_field(one: "Field[Any]", about: Param) -> forms.Field:
    kind, is_list = _kind(one)
    shown: dict[str, Any] = {"label": about.label, "help_text": about.note, "initial": one.default}
    if about.choices:
        words = about.choices if isinstance(about.choices, Mapping) else {}
        choices = [(name, words.get(name, name)) for name in about.choices]
        if is_list:
            widget = forms.CheckboxSelectMultiple
            return forms.MultipleChoiceField(choices=choices, widget=widget, **shown)
        return forms.ChoiceField(choices=choices, **shown)
    number: Any = {int: forms.IntegerField, float: forms.FloatField}[kind]
    least, most = about.limits or (None, None)
    made: forms.Field = number(min_value=least, max_value=most, **shown)
    return made


def add_file(parser: ArgumentParser, name: str, meaning: str, metavar: str = "FILE") -> None:
    """Add an option that names a file to write."""
    parser.add_argument(f"--{name}", type=Path, metavar=metavar, help=meaning)
