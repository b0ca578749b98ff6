"""What `make` installs before a target: a Python, packages, and Debian's servers."""

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pip
import pytest

from devservers import HOST
from devservers.faults.waiting import until
from tests import programs
from tests.test_demo import ROOT, environment, port
from tools import setup

__all__ = ["port"]
SHELL = "/bin/sh"


def python_sh(path: Path, *arguments: str) -> tuple[int, str]:
    env = {"PATH": str(path)}
    return programs.run(SHELL, "tools/python.sh", *arguments, cwd=ROOT, env=env)


def program(file: Path, script: str) -> None:
    file.write_text(f"#!{SHELL}\n{script}\n")
    file.chmod(0o755)


def test_python_that_only_seems_to_be_there_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "python3", "echo 'pyenv: command not found' >&2; exit 127")
    program(tmp_path / "python3.13", "exit 1")
    code, said = python_sh(tmp_path, "-c", "pass")
    assert (code, "No usable Python: version 3.11 or later" in said) == (1, True)
    program(tmp_path / "python3.12", f'exec {sys.executable} "$@"')
    assert python_sh(tmp_path, "-c", "print('served')") == (0, "served\n")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the set-up needs of the project, in a folder of its own, and its environment."""
    for folder in ("tools", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    venv.create(tmp_path / ".venv")  # pip would be installed, which takes longer than to copy it
    (packages,) = tmp_path.glob(".venv/lib/python*/site-packages")
    shutil.copytree(Path(pip.__file__).parent, packages / "pip")
    return tmp_path


def start_setup(clone: Path, **changes: str) -> subprocess.Popen[str]:
    mine = {name: value for name, value in environment().items() if not name.startswith("PIP_")}
    return subprocess.Popen(
        [sys.executable, "tools/setup.py", "demo", "-c", "print('ready')"],
        cwd=clone,
        env=mine | changes,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_setup(clone: Path, **changes: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    with start_setup(clone, **changes) as process:
        said, _ = process.communicate()
    return process.returncode, said


def stamp(clone: Path, name: str = "demo") -> Path:
    """Say that the packages of the set are installed."""
    file = clone / f".venv/{name}.sha256"
    file.write_text(setup.sha256(clone / f"requirements/{name}.txt"))
    return file


def test_no_network(clone: Path, port: int) -> None:
    """A set that contains the failed one counts as installed no longer: pip may have begun."""
    larger = stamp(clone, "dev")
    nobody = f"http://{HOST}:{port}/"
    code, said = run_setup(clone, PIP_INDEX_URL=nobody, PIP_CONFIG_FILE=os.devnull)
    assert code == 1
    assert "The Python packages cannot be installed." in said
    assert "NewConnectionError" in said
    assert not (clone / ".venv/demo.sha256").exists()
    assert not larger.exists()


def test_second_set_up_waits_for_the_first(clone: Path) -> None:
    """Two first `make demo` at once would write to one .venv.

    With the stamp of the first there is nothing left to say, to make or to ask the index for.
    """
    folder = os.open(clone / "requirements", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with start_setup(clone) as second:

        def is_waiting() -> bool:
            waits = [one.split() for one in Path("/proc/locks").read_text().splitlines()]
            return ["->", str(second.pid)] in [[one[1], one[5]] for one in waits]

        until(lambda: is_waiting() or second.poll() is not None, "the wait, or an end")
        stamp(clone)  # by the first
        os.close(folder)
        said, _ = second.communicate()
    assert (second.returncode, said) == (0, "Waiting for another set-up ...\nready\n")


def test_without_debian_and_a_compiler_the_tests_do_without_mysqlclient(clone: Path) -> None:
    (clone / ".venv/helm.sha256").write_text(setup.sha256(clone / "requirements/helm.txt"))
    (packages,) = clone.glob(".venv/lib/python*/site-packages/pip")
    (packages / "__main__.py").write_text(
        "import sys; asked = open(sys.argv[-1]).read(); open('asked', 'w').write(asked)\n"
        "sys.exit('error: mysqlclient' if 'mysqlclient==' in asked else 0)"
    )
    env = environment(PATH=str(clone / "nothing"))
    said = programs.output(sys.executable, "tools/setup.py", "test", cwd=clone, env=env)
    assert "tests that need MariaDB are left out" in said
    pins, asked = ((clone / file).read_text() for file in ("requirements/dev.txt", "asked"))
    assert asked.count("==") == pins.count("==") - 1


def test_set_up_again_when_the_python_is_gone(clone: Path, port: int) -> None:
    """The system's next version replaced it: the packages are those of the old one."""
    stamp(clone)
    for python in clone.glob(".venv/bin/python*"):
        python.unlink()
        python.symlink_to(clone / "gone")
    nobody = f"http://{HOST}:{port}/"
    _, said = run_setup(clone, PIP_INDEX_URL=nobody, PIP_CONFIG_FILE=os.devnull)
    assert "Creating .venv" in said


def test_a_package_that_brings_a_service_does_not_start_it(tmp_path: Path) -> None:
    """Neither when it is installed, which Debian asks policy-rc.d, nor at boot: it is masked."""
    policy, units, told = tmp_path / "policy-rc.d", tmp_path / "units", tmp_path / "told"
    units.mkdir()
    program(tmp_path / "apt-get", f'{policy}; echo "$? $*" >{told}')
    script = setup.INSTALL.replace("/usr/sbin/policy-rc.d", str(policy))
    script = script.replace("/etc/systemd/system", str(units))
    command = [SHELL, "-c", script, "sh", "wrk", "nginx-light", "-qq"]
    subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    assert told.read_text() == "101 install -y --no-install-recommends wrk nginx-light -qq\n"
    assert (units / "nginx.service").readlink() == Path(os.devnull)
    assert not policy.exists()


def test_set_up_ends_after_the_installation_and_its_policy(clone: Path, tmp_path: Path) -> None:
    """With it, no package would start its service any more."""
    programs, policy = tmp_path / "programs", tmp_path / "policy-rc.d"
    programs.mkdir()
    program(programs / "dpkg-query", "exit")  # nothing is installed
    program(programs / "sudo", 'shift; exec "$@"')
    wait = "touch begun; until [ -e go ]; do sleep .05; done"
    program(programs / "apt-get", f"cd {tmp_path}; [ $1 != install ] || {{ {wait}; }}")
    script = clone / "tools/setup.py"
    text = script.read_text().replace("/usr/sbin/policy-rc.d", str(policy))
    (tmp_path / "etc/postgresql-common").mkdir(parents=True)
    script.write_text(text.replace("/etc/", f"{tmp_path}/etc/"))
    command = [sys.executable, script, "test"]
    env = environment(PATH=f"{programs}:/usr/bin:/bin")
    with subprocess.Popen(command, cwd=clone, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            until((tmp_path / "begun").exists, "the installation")
            assert policy.exists()
            process.terminate()
        finally:
            (tmp_path / "go").touch()
    assert process.returncode == 143
    assert not policy.exists()
