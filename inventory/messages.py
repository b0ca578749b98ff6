"""Execution of statements: the whole transaction in one message, or one by one.

MySQL gets START TRANSACTION, the statements and COMMIT; after a statement that has to change rows
comes one that fails if it did not. PostgreSQL gets the statements alone, which it runs as one
transaction; one that has to change rows is wrapped in a SELECT that fails if it did not.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from django.db import (
    DatabaseError,
    Error,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)
from django.db.backends.utils import CursorWrapper

from inventory.exceptions import OutcomeUnknown
from inventory.statements import MakeError, Statement

# DO would ignore the error, and SELECT would add a result set to be read.
MYSQL_CHECKED = "{}; SET @changed = EXP(IF(ROW_COUNT() >= {}, 0, 9999))"
OUT_OF_RANGE = 1690
MYSQL_ERRORS: dict[object, type[DatabaseError]] = {
    # Django's cursor translates these only in the reply to the first statement of a message.
    **dict.fromkeys((1048, 3819, 4025), IntegrityError),
    # A missing column, table privilege or column privilege: as PostgreSQL classifies them.
    **dict.fromkeys((1054, 1142, 1143), ProgrammingError),
}
POSTGRESQL_CHECKED = "WITH changed AS ({} RETURNING 1) SELECT 1 / (COUNT(*) / {}) FROM changed"
DIVISION_BY_ZERO = "22012"


@cache
def is_message_atomic() -> bool:
    """Return True if a message of several statements is one transaction.

    It is not in a Galera cluster, which may roll back a transaction of one node because of another
    node's: without an error, orders were lost, or a part of a message was executed (ADR 4).
    """
    if connection.vendor != "mysql":
        return connection.vendor in DIALECTS
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
        return (cursor.fetchone() or ("", "OFF"))[1] != "ON"


class Unchanged(Exception):
    """A statement changed fewer rows than it has to; the transaction is rolled back."""

    def __init__(self, make_error: MakeError) -> None:
        self.make_error = make_error


def one_by_one(statements: Sequence[Statement]) -> list[int]:
    """Execute the statements inside the current transaction; return the id each one inserted."""
    ids = []
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.sql, statement.params)
            if statement.if_unchanged is not None and cursor.rowcount < statement.rows:
                raise Unchanged(statement.if_unchanged)
            if cursor.description:  # of RETURNING
                (inserted,) = cursor.fetchone()
            else:
                inserted = getattr(cursor, "lastrowid", 0)
            ids.append(int(inserted or 0))
    return ids


def in_transaction(statements: Sequence[Statement]) -> list[int]:
    """Execute the statements one by one as a transaction; return the id each one inserted.

    Raise OutcomeUnknown if the connection is lost.
    """
    session = None
    try:
        with transaction.atomic(durable=True):
            session = connection.connection
            return one_by_one(statements)
    except Error as error:
        if connection.connection is session:
            raise
        # Django has closed it, because it could not be rolled back.
        raise OutcomeUnknown(str(error)) from error


def in_one_message(statements: Sequence[Statement]) -> list[int]:
    """Execute the statements as a transaction of their own; return the id each one inserted.

    Raise OutcomeUnknown if the connection is lost before the reply.
    """
    # Django's atomic() would send SET autocommit or BEGIN, and COMMIT: more round trips.
    checked, send = DIALECTS[connection.vendor]
    parts = [
        checked.format(one.sql, one.rows) if one.if_unchanged else one.sql for one in statements
    ]
    params = [value for statement in statements for value in statement.params]
    with connection.cursor() as cursor:
        try:
            with connection.wrap_database_errors:
                return send(cursor, "; ".join(parts), params, statements)
        except BaseException as error:
            is_known = _roll_back(cursor)
            if not is_known and isinstance(error, Error):
                raise OutcomeUnknown(str(error)) from error
            reclassify(error)
            raise


def reclassify(error: BaseException) -> None:
    """Raise the error with another class if MySQL's client library gives it a misleading one."""
    kind = MYSQL_ERRORS.get(next(iter(error.args), None))
    if kind and isinstance(error, OperationalError):
        raise kind(*error.args) from error


def _roll_back(cursor: CursorWrapper) -> bool:
    """Return True if the server replied, and so has nothing left to execute."""
    try:
        while cursor.nextset():
            pass
        cursor.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - a connection in an unknown state is unusable
        connection.close()
        return False
    return True


def _send_to_mysql(
    cursor: CursorWrapper, text: str, params: Sequence[Any], statements: Sequence[Statement]
) -> list[int]:
    ids = list[int]()
    cursor.execute(f"START TRANSACTION; {text}; COMMIT", params)
    session = connection.connection  # a cursor would also fetch rows, which no result has
    for statement in statements:
        session.next_result()
        ids.append(session.insert_id())
        if statement.if_unchanged:
            try:
                session.next_result()
            except session.Error as error:
                if error.args[0] == OUT_OF_RANGE:
                    raise Unchanged(statement.if_unchanged) from None
                raise
    session.next_result()
    return ids


def _send_to_postgresql(
    cursor: CursorWrapper, text: str, params: Sequence[Any], statements: Sequence[Statement]
) -> list[int]:
    from psycopg import ClientCursor, errors, generators, pq  # only where it is installed

    session = connection.connection
    # Not `cursor.execute`, whose errors do not tell which statement failed.
    session.pgconn.send_query(ClientCursor(session).mogrify(text, params).encode())
    results = session.wait(generators.execute(session.pgconn))
    if results[-1].status == pq.ExecStatus.FATAL_ERROR:
        failed = errors.error_from_result(results[-1], "utf-8")
        make_error = statements[len(results) - 1].if_unchanged
        if make_error and failed.sqlstate == DIVISION_BY_ZERO:
            raise Unchanged(make_error)
        raise failed
    return [int(one.get_value(0, 0) or 0) if one.ntuples else 0 for one in results]


Send = Callable[[CursorWrapper, str, Sequence[Any], Sequence[Statement]], list[int]]
DIALECTS: dict[str, tuple[str, Send]] = {
    "mysql": (MYSQL_CHECKED, _send_to_mysql),
    "postgresql": (POSTGRESQL_CHECKED, _send_to_postgresql),
}
"""How a statement that has to change rows is wrapped, and how the message is sent."""
