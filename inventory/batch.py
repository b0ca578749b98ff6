"""Several statements as one durable transaction, in as few round trips as the store allows.

MariaDB and MySQL take BEGIN, all the statements and COMMIT in one message: one round trip, however
many statements, and row locks are held for none. Others get them one by one. A statement that
changes no row although it must ends the transaction: nothing is written.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Model

# Fails after a statement that changed no row, and so keeps the server from what stands behind it.
# Not DO, which forgets errors, and not SELECT, which has an answer to be read.
CHECK = "SET @changed = EXP(IF(ROW_COUNT() > 0, 0, 9999))"
OUT_OF_RANGE = 1690


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, and the error that it means when it changes no row.

    `unless` makes that error, when nothing is written any more: it may look up the reason.
    """

    sql: str
    params: Sequence[Any]
    unless: Callable[[], Exception] | None = None

    def done(self, cursor: CursorWrapper) -> int:
        """The id of the row that it inserted."""
        if self.unless is not None and not cursor.rowcount:
            raise _Unchanged(self.unless)
        return int(cursor.lastrowid or 0)


class _Unchanged(Exception):
    def __init__(self, unless: Callable[[], Exception]) -> None:
        self.unless = unless


def commit(statements: Sequence[Statement]) -> list[int]:
    """Run them as one transaction of their own; the ids of the rows that each inserted.

    Raises a statement's `unless` and the database's own errors; nothing is then written, except
    that an OperationalError of the COMMIT leaves open whether it was.
    """
    try:
        if connection.vendor == "mysql" and not connection.in_atomic_block:
            with connection.cursor() as cursor:
                return _at_once(cursor, statements)
        with transaction.atomic(durable=True):
            return _one_by_one(statements)
    except _Unchanged as error:
        raise error.unless() from None


def run(statements: Sequence[Statement]) -> None:
    """Run them inside the caller's transaction, which an error has to end."""
    try:
        _one_by_one(statements)
    except _Unchanged as error:
        raise error.unless() from None


def _one_by_one(statements: Sequence[Statement]) -> list[int]:
    ids = []
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.sql, statement.params)
            ids.append(statement.done(cursor))
    return ids


def _at_once(cursor: CursorWrapper, statements: Sequence[Statement]) -> list[int]:
    """Django's atomic() would send SET autocommit before and after: three round trips more."""
    parts, params = ["START TRANSACTION"], list[Any]()
    for statement in statements:
        parts += [statement.sql, CHECK] if statement.unless else [statement.sql]
        params += statement.params
    try:
        cursor.execute("; ".join([*parts, "COMMIT"]), params)
        ids = []
        for statement in statements:
            cursor.nextset()
            ids.append(int(cursor.lastrowid or 0))
            if statement.unless:
                _next_unless(cursor, statement.unless)
        cursor.nextset()
        return ids
    except BaseException:
        _roll_back(cursor)
        raise


def _next_unless(cursor: CursorWrapper, unless: Callable[[], Exception]) -> None:
    try:
        cursor.nextset()
    except DatabaseError as error:
        if error.args[0] == OUT_OF_RANGE:
            raise _Unchanged(unless) from None
        raise


def _roll_back(cursor: CursorWrapper) -> None:
    try:
        while cursor.nextset():
            pass
        cursor.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - a connection in an unknown state is worth nothing
        connection.close()


def insert(model: type[Model], **values: object) -> Statement:
    """One new row; every column that has no database default must be given."""
    plan = _plan(model, tuple(values), connection.vendor)
    here = connections[connection.alias]
    return Statement(plan.sql, [save(values[name], here) for name, save in plan.columns])


def insert_all(
    model: type[Model], varying: Sequence[str], rows: Iterable[Sequence[object]], **same: object
) -> Statement:
    """Several new rows at once: `varying` names what each of `rows` gives, `same` is in all."""
    head = _plan(model, (*varying, *same), connection.vendor).sql
    ends = [as_stored(model, name, value) for name, value in same.items()]
    params: list[object] = []
    count = 0
    for row in rows:
        params += (as_stored(model, *pair) for pair in zip(varying, row, strict=True))
        params += ends
        count += 1
    marks = head.rpartition(" VALUES ")[2]
    return Statement(head + f", {marks}" * (count - 1), params)


def as_stored(model: type[Model], name: str, value: object) -> object:
    """A column's value as the database takes it."""
    return _field(model, name).get_db_prep_save(value, connection)


def _field(model: type[Model], name: str) -> Any:
    return model._meta.get_field(name)


class _Plan(NamedTuple):
    sql: str
    columns: list[tuple[str, Callable[[object, Any], object]]]


@cache
def _plan(model: type[Model], names: tuple[str, ...], vendor: str) -> _Plan:
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(_field(model, name).column)) for name in names)
    marks = ", ".join(["%s"] * len(names))
    # Names out of the model, no input.
    sql = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({marks})"  # noqa: S608
    return _Plan(sql, [(name, _field(model, name).get_db_prep_save) for name in names])
