"""English. FORMAT_MODULE_PATH names the folder above: times look alike in all languages."""

DATETIME_FORMAT = "Y-m-d H:i:s"
