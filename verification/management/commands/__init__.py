"""The command `manage.py verify`."""
