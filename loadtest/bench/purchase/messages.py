"""Compare ways to send a purchase to MariaDB (docs/adr/0004).

    python -m loadtest.bench.purchase.messages

The same INSERT, UPDATE, INSERT as one transaction, written by as many threads as a web process has,
one after the other as behind a lock, or all at once. Each way is measured in turn, five times.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from statistics import median

import MySQLdb
from MySQLdb.constants import CLIENT
from MySQLdb.cursors import Cursor

from devservers import HOST, MariaDb

THREADS = 8
SECONDS = 0.5
ROUNDS = 5
TABLES = """
    CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, number CHAR(16) UNIQUE,
        customer BIGINT NOT NULL, placed DATETIME(6) NOT NULL, KEY (customer));
    CREATE TABLE stock (id INT PRIMARY KEY, quantity INT UNSIGNED NOT NULL);
    CREATE TABLE ledger (id BIGINT AUTO_INCREMENT PRIMARY KEY, number CHAR(16), delta INT);
    INSERT INTO stock VALUES (1, 100000000)
"""
ORDER = "INSERT INTO orders (number, customer, placed) VALUES (%s, %s, NOW(6))"
TAKE = "UPDATE stock SET quantity = quantity - 1 WHERE id = 1 AND quantity >= 1"
LEDGER = "INSERT INTO ledger (number, delta) VALUES (%s, -1)"
CHECK = "SET @changed = EXP(IF(ROW_COUNT() > 0, 0, 9999))"
BLOCK = """
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION; {order}; SET @id = LAST_INSERT_ID(); {take};
    IF ROW_COUNT() = 0 THEN SIGNAL SQLSTATE '45000'; END IF;
    {ledger}; COMMIT; SELECT @id;
"""


def statements(cursor: Cursor, number: str, customer: int) -> None:
    """Each in a message of its own: five round trips."""
    for sql, params in (
        ("START TRANSACTION", ()),
        (ORDER, (number, customer)),
        (TAKE, ()),
        (LEDGER, (number,)),
        ("COMMIT", ()),
    ):
        cursor.execute(sql, params)


def message(cursor: Cursor, number: str, customer: int) -> None:
    """All in one message, an answer to each."""
    script = f"START TRANSACTION; {ORDER}; {TAKE}; {CHECK}; {LEDGER}; COMMIT"
    cursor.execute(script, (number, customer, number))
    while cursor.nextset():
        pass


def block(cursor: Cursor, number: str, customer: int) -> None:
    """MariaDB's compound statement: parsed each time, one answer."""
    body = BLOCK.format(order=ORDER, take=TAKE, ledger=LEDGER)
    cursor.execute(f"BEGIN NOT ATOMIC {body} END", (number, customer, number))
    while cursor.nextset():
        pass


def procedure(cursor: Cursor, number: str, customer: int) -> None:
    """A stored procedure: parsed once a connection, one answer."""
    cursor.execute("CALL buy(%s, %s)", (number, customer))
    while cursor.nextset():
        pass


WAYS = (
    statements,
    message,
    block,
    procedure,
)


def rate(port: int, way: Callable[..., None], lock: threading.Lock | None) -> float:
    """Transactions a second."""
    counts, until = [0] * THREADS, time.monotonic() + SECONDS

    def work(place: int) -> None:
        with _connect(port) as connection, connection.cursor() as cursor:
            while time.monotonic() < until:
                number = f"{time.monotonic_ns():x}{place}"[-16:]
                if lock:
                    with lock:
                        way(cursor, number, place)
                else:
                    way(cursor, number, place)
                counts[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def _connect(port: int) -> MySQLdb.Connection:
    flags = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS
    options = {"database": "shop", "autocommit": True, "client_flag": flags}
    return MySQLdb.connect(host=HOST, port=port, user="root", **options)


def main() -> None:
    """Print the table."""
    with MariaDb() as server:
        with _connect(server.port) as connection, connection.cursor() as cursor:
            cursor.execute(TABLES)
            while cursor.nextset():
                pass
            body = BLOCK.format(
                order=ORDER % ("a_number", "a_customer"), take=TAKE, ledger=LEDGER % "a_number"
            )
            cursor.execute(
                f"CREATE PROCEDURE buy(a_number CHAR(16), a_customer BIGINT) BEGIN {body} END"
            )
        found: dict[tuple[str, bool], list[float]] = {}
        for _ in range(ROUNDS):
            for way in WAYS:
                for locked in (True, False):
                    lock = threading.Lock() if locked else None
                    found.setdefault((way.__name__, locked), []).append(
                        rate(server.port, way, lock)
                    )
    sys.stdout.write(f"{'':12}{'one by one':>12}{'all at once':>12}\n")
    for way in WAYS:
        one, all_ = (median(found[way.__name__, locked]) for locked in (True, False))
        sys.stdout.write(f"{way.__name__:12}{one:>10.0f}/s{all_:>10.0f}/s\n")


if __name__ == "__main__":
    main()
