"""The tables of an experiment's own database."""

from django.apps import apps
from django.conf import settings
from django.core.management import call_command


def create_tables() -> None:
    """Create all tables from the models: the migrations of a shop take seven times as long.

    The library's migrations run, because they also create its sequence of tokens on PostgreSQL.
    """
    labels = {one.label for one in apps.get_app_configs()} - {"locking"}
    settings.MIGRATION_MODULES = dict.fromkeys(labels)
    call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
