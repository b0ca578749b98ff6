"""Errors of the stock.

InventoryError
├── OutOfStock    fewer units are left than were requested
└── StaleFence    a newer holder of the lock has already written the row
"""

from locking.exceptions import DocumentedError


class InventoryError(DocumentedError):
    """Base class of all errors of the stock."""


class OutOfStock(InventoryError):
    """Fewer units are left than were requested."""


class StaleFence(InventoryError):
    """A newer holder of the lock has already written the stock row."""
