"""Run the library's tests from its wheel, in an environment without the shop and the lab.

    library.py test DJANGO [ARGUMENT ...]    with this Python, e.g. `test 5.2 -k redis`
    library.py matrix PYTHON ...             with these Pythons and every DJANGO that serves them

`matrix` writes docs/library/versions.md. Environments are kept in the folder for temporary files.
"""

import datetime
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(tempfile.gettempdir()) / "django-distributed-locks"
PAGE = ROOT / "docs" / "library" / "versions.md"
DJANGOS = ("5.2", "6.0", "6.1")
SOURCES = ("pyproject.toml", "LICENSE", "docs/library/README.md", "locking")
TESTS = (
    *("pyproject.toml", "devservers"),
    *(f"tests/{name}" for name in ("__init__.py", "conftest.py", "fault_rows.py")),
    *("tests/locking", "tests/devservers"),
)
EXTRAS = "celery,mysql,prometheus,redis,testing,zookeeper"
TOOLS = ("pytest-django>=4.11", "pytest-xdist>=3.6", "django-environ>=0.12", "hypothesis>=6")
TABLE = "<!-- versions -->\n"


def copy(names: tuple[str, ...], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in names:
        here, there = ROOT / name, folder / name
        there.parent.mkdir(parents=True, exist_ok=True)
        if here.is_dir():
            shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(here, there)


def test(python: str, django: str, *arguments: str) -> tuple[bool, str]:
    """Return True if the tests passed, and the versions with pytest's last line."""
    name = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
    version = name.stdout.split()[1]
    folder = FOLDER / f"python{version}-django{django}"
    bin_ = folder / "venv" / "bin"
    pip = [str(bin_ / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    copy(SOURCES, folder / "source")
    copy(TESTS, folder / "tests")
    if not bin_.exists():
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    # From a copy, because setuptools writes to the source folder.
    source = str(folder / "source")
    subprocess.run([*pip, "wheel", "--no-deps", "-w", source, source], check=True)
    (built,) = map(str, (folder / "source").glob("*.whl"))
    wanted = [f"django~={django}.0", f"{built}[{EXTRAS}]", *TOOLS]
    subprocess.run([*pip, "install", *wanted], check=True)
    beat = [*pip, "install", wanted[0], "django-celery-beat>=2.8"]
    has_beat = not subprocess.run(beat, check=False).returncode  # it limits the version of Django
    again = [*pip, "install", "--no-deps", "--force-reinstall", built]
    subprocess.run(again, check=True)  # the same version may have other code
    run = subprocess.Popen(
        # pytest-django would find the shop by its manage.py in a folder above.
        [bin_ / "pytest", "tests/locking", "-o", "django_find_project=false", *arguments],
        cwd=folder / "tests",
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    last = ""
    for line in run.stdout:
        print(line, end="", flush=True)
        last = line.strip(" =\n") or last
    show = "import django; print(django.__version__)"
    done = subprocess.run([bin_ / "python", "-c", show], capture_output=True, text=True, check=True)
    last += "" if has_beat else ", without django-celery-beat"
    return run.wait() == 0, f"| {version} | {done.stdout.strip()} | {last} |"


def matrix(*pythons: str) -> bool:
    rows, passed, started = [], True, time.time()
    for python in filter(shutil.which, pythons):
        for django in DJANGOS:
            code = f"import sys; sys.exit({django!r} > '6' and sys.version_info < (3, 12))"
            if subprocess.run([python, "-c", code], check=False).returncode:
                continue  # Django 6 needs Python 3.12
            is_good, row = test(python, django, "-q", "-m", FAST)
            passed &= is_good
            rows.append(row if is_good else re.sub(r"\|$", "**failed** |", row))
    head, _, rest = PAGE.read_text().partition(TABLE)
    tail = rest.partition("<!-- /versions -->")[2]
    when = f"{datetime.date.today()}, {(time.time() - started) / 60:.0f} minutes."
    lines = [when, "", "| Python | Django | tests |", "| --- | --- | --- |", *rows]
    PAGE.write_text(f"{head}{TABLE}\n" + "\n".join(lines) + f"\n\n<!-- /versions -->{tail}")
    return passed


FAST = "not long and not faults"

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["test", django, *arguments]:
            sys.exit(not test(sys.executable, django, *arguments)[0])
        case ["matrix", *pythons] if pythons:
            sys.exit(not matrix(*pythons))
    sys.exit(__doc__)
