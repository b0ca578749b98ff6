"""SQL statements that one transaction executes together; `inventory.stock.commit` executes them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import connection, connections
from django.db.models import CharField, ForeignKey, IntegerField, Model, TextField

AS_IS = (CharField, ForeignKey, IntegerField, TextField)
"""Types of fields whose values the database adapters take as they are."""
MakeError = Callable[[], Exception]
"""Returns the error to raise; called after the rollback, so that it may query the reason."""


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement; if it changes fewer than `rows`, the error of `if_unchanged` is raised."""

    sql: str
    params: Sequence[Any]
    if_unchanged: MakeError | None = None
    rows: int = 1


def insert(model: type[Model], **values: object) -> Statement:
    """Return the INSERT of one row; give every column that has no database default."""
    return insert_all(model, (), [()], **values)


def insert_all(
    model: type[Model], varying: Sequence[str], rows: Iterable[Sequence[object]], **same: object
) -> Statement:
    """Return the INSERT of several rows: each has its own `varying` columns and the `same` ones."""
    database = connections[connection.alias]
    insert, marks, returning, conversions = _plan(model, (*varying, *same), database.vendor)

    def convert(values: Iterable[object], start: int) -> list[object]:
        pairs = zip(conversions[start:], values, strict=False)
        return [adapt(value, database) if adapt else value for adapt, value in pairs]

    common, own = convert(same.values(), len(varying)), [convert(row, 0) for row in rows]
    params = [value for row in own for value in (*row, *common)]
    return Statement(insert + ", ".join([marks] * len(own)) + returning, params)


def as_stored(model: type[Model], name: str, value: object) -> object:
    """Return the value of a column in the form that the database adapter takes."""
    field: Any = model._meta.get_field(name)
    return field.get_db_prep_save(value, connection)


@cache
def _plan(
    model: type[Model], names: tuple[str, ...], vendor: str
) -> tuple[str, str, str, list[Callable[[object, Any], object] | None]]:
    """Return the INSERT up to VALUES, the placeholders of a row, the end, and the conversions.

    Integers and text need none.
    """
    quote = connection.ops.quote_name
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    columns = ", ".join(quote(field.column) for field in fields)
    # The names come from the model, not from input.
    insert = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES "  # noqa: S608
    marks = f"({', '.join(['%s'] * len(names))})"
    conversions = [None if isinstance(field, AS_IS) else field.get_db_prep_save for field in fields]
    # On other databases a generated id is part of the reply.
    generated: Any = model._meta.auto_field if vendor == "postgresql" else None
    returning = f" RETURNING {quote(generated.column)}" if generated else ""
    return insert, marks, returning, conversions
