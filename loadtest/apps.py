"""The Django app of the lab."""

from django.apps import AppConfig


class LoadtestConfig(AppConfig):
    """Load tests and scenarios, from the command line and under /lab/."""

    name = "loadtest"
    default_auto_field = "django.db.models.BigAutoField"
