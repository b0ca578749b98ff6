"""The command `manage.py lab`."""
