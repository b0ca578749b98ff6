"""The subcommands of `manage.py lab`; each module is one, found by its name.

A module's docstring is its help: a sentence, and an example. Its COMMAND runs it, or its
own functions are: `add_arguments(parser)` declares the options beside --json, which all have, and
`handle(terminal, **options)` runs it and returns the exit code. PlanError means bad arguments (exit
2), ExperimentFailed an unexpected failure (exit 1).
"""
