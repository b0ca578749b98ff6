"""Simplified Chinese. Django's own inputs would lose the seconds, its numbers have no commas."""

DATETIME_FORMAT = "Y-m-d H:i:s"
DATE_INPUT_FORMATS = ["%Y-%m-%d"]
THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
TIME_INPUT_FORMATS = ["%H:%M:%S", "%H:%M"]
