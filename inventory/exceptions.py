"""Errors of the stock.

InventoryError
├── OutOfStock    fewer units are left than were requested
└── StaleFence    a newer holder of the lock has already written the row
"""


class InventoryError(Exception):
    """Base class of all errors of the stock."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class OutOfStock(InventoryError):
    """Fewer units are left than were requested."""


class StaleFence(InventoryError):
    """A newer holder of the lock has already written the stock row."""
