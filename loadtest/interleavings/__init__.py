"""All interleavings of small programs: every order of their store operations, on real servers."""

from pathlib import Path

RESULTS = Path(__file__).with_name("results.json")
"""What `manage.py lab interleavings --write` found last, by program."""
