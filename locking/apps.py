"""The reusable Django app `locking`."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class LockingConfig(AppConfig):
    """Distributed locks for Django."""

    name = "locking"
    verbose_name = _("Locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from locking import checks  # noqa: F401
