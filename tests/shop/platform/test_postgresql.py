"""The engine `shop.platform.postgresql` without its driver, and its settings."""

import json
import os
import subprocess
import sys

URL = "postgresql://shop:secret@127.0.0.1:1/shop?sslmode=disable"
WITHOUT = "import sys; sys.modules['psycopg'] = None; import django; django.setup()"
OPTIONS = "import json; from django.conf import settings; print(json.dumps(settings.DATABASES))"


def python(code: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DATABASE_URL": URL, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_missing_driver_is_named_with_its_remedy() -> None:
    failed = python(WITHOUT).stderr.splitlines()[-1]
    assert "ImproperlyConfigured" in failed
    assert "pip install 'psycopg[binary]" in failed


def test_limits_follow_the_timeout_of_the_database() -> None:
    databases = json.loads(python(OPTIONS, DATABASE_TIMEOUT="2").stdout)
    options = databases["default"]["OPTIONS"]
    assert "-c statement_timeout=1800 -c lock_timeout=1000" in options["options"]
    assert (options["response_timeout"], options["tcp_user_timeout"]) == (2, 2000)
    assert options["sslmode"] == "disable"
