"""Several statements as one durable transaction, in as few round trips as the store allows.

MariaDB and MySQL receive BEGIN, the statements and COMMIT in one message: the whole transaction
takes one round trip, and no row lock is held during one. Other databases receive the statements one
by one. A statement that has to change a row but changes none rolls the transaction back.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Model

# Fails after a statement that changed no row, so that the server does not execute the rest of the
# message. DO would ignore the error, and SELECT would add a result set to be read.
CHECK = "SET @changed = EXP(IF(ROW_COUNT() > 0, 0, 9999))"
OUT_OF_RANGE = 1690

MakeError = Callable[[], Exception]
"""Returns the error to raise; called after the rollback, so that it may query the reason."""


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement; if it changes no row, the error of `if_unchanged` is raised."""

    sql: str
    params: Sequence[Any]
    if_unchanged: MakeError | None = None


class _Unchanged(Exception):
    def __init__(self, make_error: MakeError) -> None:
        self.make_error = make_error


def commit(statements: Sequence[Statement]) -> list[int]:
    """Execute the statements as one durable transaction; return the id that each one inserted.

    Raise the error of a statement's `if_unchanged`, or the database's. Nothing is written then,
    with one exception: if the COMMIT gets no reply (OperationalError), its outcome is unknown.
    """
    try:
        if connection.vendor == "mysql" and not connection.in_atomic_block:
            with connection.cursor() as cursor:
                return _in_one_message(cursor, statements)
        with transaction.atomic(durable=True):
            return _one_by_one(statements)
    except _Unchanged as error:
        raise error.make_error() from None


def execute(statements: Sequence[Statement]) -> None:
    """Execute the statements inside the caller's transaction, which an error must roll back."""
    try:
        _one_by_one(statements)
    except _Unchanged as error:
        raise error.make_error() from None


def _one_by_one(statements: Sequence[Statement]) -> list[int]:
    ids = []
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.sql, statement.params)
            if statement.if_unchanged is not None and not cursor.rowcount:
                raise _Unchanged(statement.if_unchanged)
            ids.append(int(cursor.lastrowid or 0))
    return ids


def _in_one_message(cursor: CursorWrapper, statements: Sequence[Statement]) -> list[int]:
    # Django's atomic() would send SET autocommit before and after: three more round trips.
    parts, params = ["START TRANSACTION"], list[Any]()
    for statement in statements:
        parts += [statement.sql, CHECK] if statement.if_unchanged else [statement.sql]
        params += statement.params
    try:
        cursor.execute("; ".join([*parts, "COMMIT"]), params)
        ids = []
        for statement in statements:
            cursor.nextset()
            ids.append(int(cursor.lastrowid or 0))
            if statement.if_unchanged:
                _read_check(cursor, statement.if_unchanged)
        cursor.nextset()
        return ids
    except BaseException:
        _roll_back(cursor)
        raise


def _read_check(cursor: CursorWrapper, if_unchanged: MakeError) -> None:
    try:
        cursor.nextset()
    except DatabaseError as error:
        if error.args[0] == OUT_OF_RANGE:
            raise _Unchanged(if_unchanged) from None
        raise


def _roll_back(cursor: CursorWrapper) -> None:
    try:
        while cursor.nextset():
            pass
        cursor.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - a connection in an unknown state is unusable
        connection.close()


def insert(model: type[Model], **values: object) -> Statement:
    """Return the INSERT of one row; give every column that has no database default."""
    return insert_all(model, tuple(values), [tuple(values.values())])


def insert_all(
    model: type[Model], varying: Sequence[str], rows: Iterable[Sequence[object]], **same: object
) -> Statement:
    """Return the INSERT of several rows: each has its own `varying` columns and the `same` ones."""
    insert, marks, conversions = _plan(model, (*varying, *same), connection.vendor)
    database, common = connections[connection.alias], tuple(same.values())
    full_rows = [(*row, *common) for row in rows]
    params = [
        convert(value, database)
        for row in full_rows
        for convert, value in zip(conversions, row, strict=True)
    ]
    return Statement(insert + ", ".join([marks] * len(full_rows)), params)


def as_stored(model: type[Model], name: str, value: object) -> object:
    """Return the value of a column in the form that the database adapter takes."""
    field: Any = model._meta.get_field(name)
    return field.get_db_prep_save(value, connection)


@cache
def _plan(
    model: type[Model], names: tuple[str, ...], vendor: str
) -> tuple[str, str, list[Callable[[object, Any], object]]]:
    """Return the INSERT up to VALUES, the placeholders of a row and the conversion per column."""
    quote = connection.ops.quote_name
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    columns = ", ".join(quote(field.column) for field in fields)
    # The names come from the model, not from input.
    insert = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES "  # noqa: S608
    marks = f"({', '.join(['%s'] * len(names))})"
    return insert, marks, [field.get_db_prep_save for field in fields]
