"""What can go wrong with stock.

InventoryError
├── OutOfStock    fewer pieces are left than were asked for
└── StaleFence    a newer holder has touched the row: this one's lock is no longer good
"""


class InventoryError(Exception):
    """Something went wrong with stock."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class OutOfStock(InventoryError):
    """Fewer pieces are left than were asked for."""


class StaleFence(InventoryError):
    """A newer holder of the lock has already touched the stock row."""
