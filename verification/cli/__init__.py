"""The subcommands of `manage.py verify`; each module is one, as in `loadtest.cli`."""
