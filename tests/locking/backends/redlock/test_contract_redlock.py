"""The contract on five independent Redis masters."""

from tests.locking.backends.contract import Contract
from tests.locking.backends.store_drivers import RedLockDriver


class TestRedLock(Contract):
    Driver = RedLockDriver
    path = "locking.backends.redlock.RedLockBackend"
    down = [f"redis://127.0.0.1:{port}/0" for port in (1, 2, 3)]
