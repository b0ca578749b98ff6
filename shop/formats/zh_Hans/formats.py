"""Simplified Chinese. Django's own inputs would lose the seconds of a time."""

DATETIME_FORMAT = "Y-m-d H:i:s"
DATE_INPUT_FORMATS = ["%Y-%m-%d"]
TIME_INPUT_FORMATS = ["%H:%M:%S", "%H:%M"]
