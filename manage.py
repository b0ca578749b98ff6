#!/usr/bin/env python
"""The command line of the shop, the locks and the lab."""

import os
import signal
import sys

if __name__ == "__main__":
    # Raised, so that what holds a lock gives it back on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
