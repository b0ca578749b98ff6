"""The database session of the current thread, and its end on the server.

If a COMMIT gets no reply, the message may still be on its way. Once the server has ended the
session, it executes nothing more for it, so the outcome can be looked up.
"""

from dataclasses import dataclass

from django.db import OperationalError, connection

NO_SUCH_THREAD = 1094
# A client does not know the id that the server uses if a proxy stands between them, so the server
# is asked. The upper bits of UUID_SHORT() are the MySQL server's id and the second of its start.
IDENTITY = {
    "mysql": "SELECT CONNECTION_ID(), UUID_SHORT() >> 24, CONCAT(@@hostname, ':', @@port)",
    "postgresql": (
        "SELECT pg_backend_pid(), EXTRACT(EPOCH FROM pg_postmaster_start_time())::bigint,"
        " CONCAT(inet_server_addr(), ':', inet_server_port())"
    ),
}
END = {
    "mysql": "KILL CONNECTION %s",
    "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s",
}


@dataclass(frozen=True, slots=True)
class DatabaseSession:
    """A session as the server knows it."""

    id: int
    server_start: int
    """Differs after a restart, when the id may belong to another session."""
    server: str


def current_session() -> DatabaseSession | None:
    """Return the session of this thread's connection; None on SQLite, which always replies."""
    if connection.vendor not in IDENTITY:
        return None
    with connection.cursor() as cursor:
        cursor.execute(IDENTITY[connection.vendor])
        return DatabaseSession(*cursor.fetchone())


def end_session(session: DatabaseSession) -> bool:
    """End a session; return True once the server no longer knows it.

    Call it again until then, in a thread of its own, whose connection it closes. Raise
    OperationalError if the database does not reply or another server does.
    """
    try:
        now = current_session()
        assert now is not None
        if now.server != session.server:
            problem = f"Session {session.id} of {session.server} cannot be ended by {now.server}"
            raise OperationalError(problem)
        if now.server_start != session.server_start:
            return True
        with connection.cursor() as cursor:
            cursor.execute(END[connection.vendor], [session.id])
            # MySQL's session ends at its next interruption point; the next call finds none.
            return connection.vendor == "postgresql" and not cursor.rowcount
    except OperationalError as error:
        if error.args[0] == NO_SUCH_THREAD:
            return True
        raise
    finally:
        connection.close()
