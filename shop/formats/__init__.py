"""Formats of times in the admin, alike in all languages: FORMAT_MODULE_PATH names this package."""
