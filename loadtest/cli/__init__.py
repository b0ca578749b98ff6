"""The subcommands of `manage.py lab`, a module each, found by its name.

A module's first docstring line is its help. `add_arguments(parser)` declares its options, and
`handle(terminal, **options)` does it and returns the exit code. PlanError means bad arguments
(exit 2), ExperimentFailed an unexpected error (exit 1).
"""
