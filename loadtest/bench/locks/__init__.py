"""The locks beside the bare commands and other libraries."""
