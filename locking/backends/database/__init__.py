"""The row lock in the project's own database."""

from locking.backends.database.backend import DatabaseBackend

__all__ = ["DatabaseBackend"]
