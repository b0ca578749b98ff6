"""What most tutorials build, as the yardstick of `manage.py lab bench purchase`."""
