"""The reusable app: settings prefix LOCK, two tables, checks and an admin page."""

from django.apps import AppConfig


class LockingConfig(AppConfig):
    """Distributed locks for Django."""

    name = "locking"
    verbose_name = "Locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from locking import checks  # noqa: F401
