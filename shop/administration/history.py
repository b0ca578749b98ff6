"""Entries of the admin's history, which its pages translate when they are read."""

import json


def entry(text: str, /, **values: object) -> str:
    """Return an entry: a text that `gettext_noop` marks, with places for the values."""
    return json.dumps({"text": text, "values": values})
