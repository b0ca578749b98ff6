"""Simplified Chinese."""

DATETIME_FORMAT = "Y-m-d H:i:s"
