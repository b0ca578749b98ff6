"""Django's PostgreSQL engine, whose waits a stall detector watches. It needs psycopg 3.

`statement_timeout` bounds the work of the server. The option `response_timeout` bounds the wait of
the client, which also ends if a message is lost on its way.
"""

from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError
from django.db.utils import DatabaseErrorWrapper
from django.utils.functional import cached_property

from shop.platform.database.stall_detector import StallDetector, detector_for

try:
    import psycopg
    from django.db.backends.postgresql import base
    from psycopg import errors, generators
    from psycopg.abc import PQGen
except ImportError as error:
    needed = "DATABASE_URL names PostgreSQL, which needs: pip install 'psycopg[binary]>=3.3'"
    raise ImproperlyConfigured(needed) from error

T = TypeVar("T")


def _ask(
    params: dict[str, Any], connection: "psycopg.Connection[Any] | None", seconds: float
) -> "psycopg.Connection[Any]":
    connection = connection or psycopg.connect(**params, autocommit=True)
    try:
        connection.pgconn.send_query(b"SELECT 1")
        connection.wait(generators.execute(connection.pgconn), timeout=seconds)
    except BaseException:
        connection.close()
        raise
    return connection


class _Opening:
    descriptor = -1
    """A connection that is being opened ends after its connect_timeout."""


class Connection(psycopg.Connection[Any]):
    """A psycopg connection whose waits are watched and bounded."""

    detector: StallDetector
    response_timeout: float
    """Seconds in which the server must reply."""
    descriptor = -1

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for the reply; without one in time, close the connection and raise."""
        self.detector.start(self)
        try:
            try:
                return super().wait(gen, interval, timeout or self.response_timeout)
            finally:
                self.detector.stop(self)
        except errors._WaitTimeout:
            self.pgconn.finish()  # only now: another connection may reuse the descriptor
            raise


def connect(response_timeout: float, **params: Any) -> Connection:
    """Return a connection whose waits are watched and bounded."""
    server, opening = f"{params.get('host')}:{params.get('port')}", _Opening()
    detector = detector_for(server, partial(_ask, params), psycopg.OperationalError)
    detector.start(opening)
    try:
        made = Connection.connect(**params)
    finally:
        detector.stop(opening)
    made.detector, made.response_timeout = detector, response_timeout
    made.descriptor = made.fileno()
    return made


class _ErrorWrapper(DatabaseErrorWrapper):
    """Translates psycopg's errors into Django's; a read-only server is an unavailable one."""

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, errors.ReadOnlySqlTransaction):
            raise OperationalError(*error.args) from error
        super().__exit__(kind, error, traceback)


class DatabaseWrapper(base.DatabaseWrapper):
    """The engine `shop.platform.postgresql`; the lock backends wait on connections of psycopg."""

    @cached_property
    def wrap_database_errors(self) -> DatabaseErrorWrapper:
        """Return the context manager that translates errors."""
        return _ErrorWrapper(self)

    def get_connection_params(self) -> dict[str, Any]:
        """Return the parameters for psycopg."""
        params: dict[str, Any] = super().get_connection_params()
        del params["response_timeout"]
        return params

    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection:
        """Return a connection whose waits are watched and bounded."""
        self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connect(self.settings_dict["OPTIONS"]["response_timeout"], **conn_params)
