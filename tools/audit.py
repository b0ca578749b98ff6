"""`make audit`: known weaknesses of the pinned packages, by pip-audit, beside our own packages.

A weakness fails it, and so does silence: without an answer for every package there is no clean
result. `make lint` calls it with --lint, where silence is said aloud and fails nothing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv" / "audit"
VERSION = "2.10.1"
PINS = ("demo", "production", "dev")
SILENCE = 10
"""Seconds for which one answer is waited for."""
ALL = 180
"""Seconds for all answers."""


class Silent(Exception):
    """Nobody said whether the packages are good."""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-m", *words],
            env={**os.environ, "PYTHONPATH": str(FOLDER)},
            capture_output=True,
            text=True,
            timeout=ALL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Silent(f"{words[0]} was not done in {ALL} s") from None


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def install() -> None:
    if not (FOLDER / f"pip_audit-{VERSION}.dist-info").exists():
        options = ["--quiet", "--retries=0", f"--timeout={SILENCE}", "--upgrade"]
        done = run("pip", "install", *options, f"--target={FOLDER}", f"pip-audit=={VERSION}")
        if done.returncode:
            raise Silent(f"pip-audit cannot be installed: {last_line(done.stderr)}")


def ask() -> list[dict[str, Any]]:
    """What is said of each package: name, version and either vulns or skip_reason."""
    words = ["--require-hashes", "--disable-pip", "--progress-spinner=off", "--format=json"]
    for pin in PINS:
        words += ["-r", str(ROOT / "requirements" / f"{pin}.txt")]
    done = run("pip_audit", f"--timeout={SILENCE}", *words)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        raise Silent(last_line(done.stderr)) from None
    return packages


def main(*, lint: bool) -> int:
    try:
        install()
        packages = ask()
        for package in packages:
            for found in package.get("vulns", ()):
                better = ", ".join(found["fix_versions"]) or "none"
                named = f"{package['name']} {package['version']}"
                print(f"{named}: {found['id']}, mended in: {better}")
        unknown = [package["skip_reason"] for package in packages if "skip_reason" in package]
        if any(package.get("vulns") for package in packages):
            return 1
        if unknown:
            raise Silent(f"of {len(unknown)} of {len(packages)} nothing is said; {unknown[0]}")
    except Silent as why:
        print(f"\n*** THE PACKAGES ARE NOT AUDITED: {why} ***\n")
        return 0 if lint else 1
    print(f"No weakness is known of {len(packages)} packages.")
    return 0


if __name__ == "__main__":
    sys.exit(main(lint="--lint" in sys.argv[1:]))
