"""What can go wrong with stock.

InventoryError
├── OutOfStock    fewer pieces are left than were asked for
├── StaleFence    a newer holder has touched the row: this one's lock is no longer good
└── RowRefused    one of the two: services.why_refused tells which
    └── RowRefused    one of the two: services.why_refused tells which
"""


class InventoryError(Exception):
    """Something went wrong with stock."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class OutOfStock(InventoryError):
    """Fewer pieces are left than were asked for."""


class StaleFence(InventoryError):
    """A newer holder of the lock has already touched the stock row."""


class RowRefused(InventoryError):
    """The stock row did not let itself be written."""
