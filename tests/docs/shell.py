"""Check a shell block of the docs against the parsers of the programs that it calls."""

import re
import shlex
import sys
import tomllib
from argparse import ArgumentParser, _SubParsersAction
from pathlib import Path
from typing import Any

from django.core.management import call_command, get_commands, load_command_class
from ruamel.yaml import YAML

from tests import programs
from tests.docs.pages import ROOT

RUN = ("audit_stock", "lock_policy", "locks", "reconcile_queued")
"""Commands that are cheap enough to be run."""
COMPOSE = ("up", "exec", "run", "stop")
OTHERS = ("cat", "cd", "git", "kubectl", "sh", "redis-cli")
"""Programs whose arguments are not ours."""


class Wrong(AssertionError):
    """A documented command that would not work."""


def check(code: str) -> None:
    """Raise Wrong if a command of the block does not exist or refuses its arguments."""
    commands = re.sub(r"<<(\w+)\n.*?^\1$", "", code, flags=re.M | re.S)  # without here-documents
    for line in commands.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words:
            _check_command(words)


def _check_command(words: list[str]) -> None:
    program, *rest = words
    match program.removeprefix(".venv/bin/"), rest:
        case "python", ["manage.py", name, *arguments]:
            _manage(name, arguments)
        case "python", ["-m", "pytest", *paths]:
            _files_exist(paths)
        case "python", ["-m", module, *_]:
            _files_exist([module.replace(".", "/") + ".py"])
        case "python", [script, *_]:
            _files_exist([script])
        case "pip", ["install", *packages]:
            _can_be_installed(packages)
        case "pip", ["wheel", "--no-deps", "-w", "wheels", "."]:
            pass  # test_library_tutorial.py builds one
        case "make", targets:
            _succeeds(["make", "--dry-run", *targets])
        case "gunicorn", options:
            gunicorn = Path(sys.executable).with_name("gunicorn")
            _succeeds([str(gunicorn), *options, "--check-config"])
        case "docker", ["compose", "--profile", _, verb, *arguments]:
            _compose(verb, arguments)
        case "docker", ["compose", verb, *arguments]:
            _compose(verb, arguments)
        case "helm", ["install", *arguments]:
            helm = Path(sys.executable).with_name("helm")
            _succeeds([str(helm), "template", *arguments])
        case name, _ if name not in OTHERS:
            raise Wrong(f"no check for the program {name}")


def command_parser(name: str) -> ArgumentParser:
    """Return the parser of a command of manage.py."""
    commands = get_commands()
    if name not in commands:
        raise Wrong(f"manage.py has no command {name}")
    command: Any = load_command_class(commands[name], name)
    return command.create_parser("manage.py", name)


def options_of(parser: ArgumentParser) -> set[str]:
    """Return all options of a parser and of its subcommands."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for choice in action.choices.values():
                found |= options_of(choice)
    return found


def _manage(name: str, arguments: list[str]) -> None:
    try:
        command_parser(name).parse_args(arguments)
        if name in RUN and "--" not in arguments:  # test_run_command.py runs programs
            call_command(name, *arguments)
    except (Exception, SystemExit) as error:
        raise Wrong(f"manage.py {name} {' '.join(arguments)}: {error}") from error


def _files_exist(paths: list[str]) -> None:
    for path in paths:
        if not (ROOT / path).exists():
            raise Wrong(f"no file {path}")


def _can_be_installed(packages: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = project["name"].replace("-", "_"), project["version"]
    for package in packages:
        name, _, extras = package.rstrip("]").partition("[")
        name = name.replace("wheels/{}-{}-py3-none-any.whl".format(*wheel), project["name"])
        unknown = set(filter(None, extras.split(","))) - set(project["optional-dependencies"])
        if name not in (".", project["name"]) or unknown:
            raise Wrong(f"pyproject.toml does not describe {package}")


def _succeeds(words: list[str]) -> None:
    code, printed = programs.run(*words, cwd=ROOT)
    if code:
        raise Wrong(f"{' '.join(words)}: {printed[-500:]}")


def _compose(verb: str, arguments: list[str]) -> None:
    if verb not in COMPOSE:
        raise Wrong(f"no check for docker compose {verb}")
    services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    words = [word for word in arguments if not re.match(r"-|\w+=\d+$", word)]
    named = words[:1] if verb in ("exec", "run") else words
    for name in named:
        if name not in services:
            raise Wrong(f"docker-compose.yml has no service {name}")
    if verb in ("exec", "run") and words[1:]:
        inner = arguments[arguments.index(words[0]) + 1 :]
        if inner[:2] == ["python", "manage.py"]:
            _manage(inner[2], inner[3:])
        else:
            _check_command(inner)
