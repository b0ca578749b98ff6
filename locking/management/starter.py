"""Replace this process by a program that the kernel kills when its parent dies (Linux).

    python starter.py PARENT COMMAND...

Exits with 127 if there is no such program, 126 if it cannot be run, as shells do.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("The parent process is gone.")
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
