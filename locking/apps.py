"""The reusable app: settings prefix LOCK, tables, checks and admin pages."""

from django.apps import AppConfig


class LockingConfig(AppConfig):
    """Distributed locks for Django."""

    name = "locking"
    verbose_name = "Locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from locking import checks  # noqa: F401
