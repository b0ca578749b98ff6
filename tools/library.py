"""Run the library's tests from its wheel, in an environment without the shop and the lab.

    library.py test DJANGO [ARGUMENT ...]    with this Python, e.g. `test 5.2 -k redis`
    library.py matrix PYTHON ...             with these Pythons and every DJANGO that serves them

DJANGO may be "lowest": 5.2.0 and the lowest version of each extra that pyproject.toml allows.
`matrix` prints a table of the results.
"""

import itertools
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOWEST = "lowest"
DJANGOS = ("5.2", "6.0", "6.1", LOWEST)
DOCS = ("docs/how-to/redis-deployments.md",)
NEEDED = ("pyproject.toml", "LICENSE", *DOCS, "locking", "devservers")
TESTS = ("__init__.py", "conftest.py", "fault_rows.py", "locking", "devservers")
EXTRAS = "celery,mysql,postgresql,prometheus,redis,testing,zookeeper"
TOOLS = ("pytest-django>=4.11", "pytest-xdist>=3.6", "django-environ>=0.12")
TASKS = ("django-tasks>=0.12", "django-tasks-db>=0.13")
LIMITED = ("django-celery-beat>=2.8", "django-ox>=1.9", "django-tasks-celery>=0.1.1")
"""They limit the versions of Django or Python; tests run without those that do."""
QUICK = "admin or check or command or idempotency or migrations or run_once or task or test_testing"
"""The part of the tests that depends most on Django."""
STORES = "redis or redlock or zookeeper"
"""The part that depends on the packages of the extras."""


def wanted(django: str) -> list[str]:
    """Return the requirements of a cell of the matrix."""
    if django != LOWEST:
        return [f"django~={django}.0"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][extra] for extra in EXTRAS.split(","))
    stated = itertools.chain(project["dependencies"], *extras)
    return [requirement.replace(">=", "==") for requirement in stated]


def test(python: str, django: str, *arguments: str) -> tuple[bool, str]:
    """Return True if the tests passed, and a row with pytest's last line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (*NEEDED, *(f"tests/{one}" for one in TESTS)):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            is_folder = (ROOT / file).is_dir()
            (shutil.copytree if is_folder else shutil.copy)(ROOT / file, folder / file)
        subprocess.run([python, "-m", "venv", folder / ".venv"], check=True)
        own = str(folder / ".venv/bin/python")
        pip = [own, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        install = [*pip, "install", *wanted(django)]
        subprocess.run([*install, f"{name}[{EXTRAS}]", *TOOLS, *TASKS], check=True)
        shutil.rmtree(folder / "locking")  # the tests must import the wheel that pip has built
        without = [
            one for one in LIMITED if subprocess.run([*install, one], check=False).returncode
        ]
        command = [own, "-m", "pytest", "tests/locking", *arguments]
        run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        last = ""
        for line in run.stdout:
            print(line, end="", flush=True)
            last = line.strip(" =\n") or last
        last += "".join(f", without {one.partition('>')[0]}" for one in without)
        return run.wait() == 0, f"| {python} | {django} | {last} |"


def matrix(*pythons: str) -> bool:
    results = []
    for python, django in itertools.product(filter(shutil.which, pythons), DJANGOS):
        code = f"import sys; sys.exit({django!r} in ('6.0', '6.1') and sys.version_info < (3, 12))"
        if not subprocess.run([python, "-c", code], check=False).returncode:
            # Below redis-py 8, a new connection waits for the reply to its handshake.
            lowest = f"({QUICK} or {STORES}) and not handshake"
            part = lowest if django == LOWEST else QUICK
            results.append(test(python, django, "-q", "-m", "not long and not faults", "-k", part))
    rows = [row for _, row in results]
    print("| Python | Django | tests |", "| --- | --- | --- |", *rows, sep="\n")
    return all(is_good for is_good, _ in results)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["test", django, *arguments]:
            sys.exit(not test(sys.executable, django, *arguments)[0])
        case ["matrix", *pythons] if pythons:
            sys.exit(not matrix(*pythons))
    sys.exit(__doc__)
