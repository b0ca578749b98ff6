"""Errors of the stock."""

from django.db import OperationalError

from locking.exceptions import DocumentedError


class InventoryError(DocumentedError):
    """Base class of all errors of the stock."""


class OutOfStock(InventoryError):
    """Fewer units are left than were requested."""


class StaleFence(InventoryError):
    """A newer holder of the lock has already written the stock row."""


class OutcomeUnknown(InventoryError, OperationalError):
    """The COMMIT got no reply: it may have been executed, or may be later."""
