"""`make audit`: known weaknesses of the pinned packages, by pip-audit in an environment of its own.

Apart from `make lint`, because it asks the network; without one it says so and fails.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ("demo", "production", "dev")
OFFLINE = ("ConnectionError", "Temporary failure", "Max retries", "timed out", "not be audited")


def run(*command: str | Path) -> int:
    """The exit code; says so when it is the network that failed."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    if any(word in done.stdout for word in OFFLINE):
        sys.exit("\nThe audit needs the index's advisories, which are silent: no clean result.")
    return done.returncode


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="seckill-audit-") as folder:
        venv.create(folder, with_pip=True)
        binary = Path(folder, "bin")
        if run(binary / "python", "-m", "pip", "install", "--quiet", "pip-audit"):
            return 1
        words: list[str | Path] = ["--require-hashes", "--disable-pip", "--progress-spinner=off"]
        for pin in PINS:
            words += ["-r", ROOT / "requirements" / f"{pin}.txt"]
        return run(binary / "pip-audit", *words)


if __name__ == "__main__":
    sys.exit(main())
