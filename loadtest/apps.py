"""The lab."""

from django.apps import AppConfig


class LoadtestConfig(AppConfig):
    """Load tests and fault scenarios, from the command line and under /lab/."""

    name = "loadtest"
    default_auto_field = "django.db.models.BigAutoField"
