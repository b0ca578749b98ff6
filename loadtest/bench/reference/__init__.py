"""The reference implementation of `manage.py lab bench purchase`: the usual tutorial's shop."""
