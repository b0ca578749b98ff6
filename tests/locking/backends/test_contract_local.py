"""The contract, run by the backends that need no server, and by a third-party backend."""

from dataclasses import replace

from tests.locking.backends.contract import Contract
from tests.locking.scripted import ScriptedBackend


class LocalBackend(ScriptedBackend):
    """Declares no property that would need a store shared by several processes."""

    capabilities = replace(ScriptedBackend.capabilities, fencing=False, lists_holders=False)


class TestNone(Contract):
    path = "locking.backends.none.NoneBackend"


class TestProcess(Contract):
    path = "locking.backends.process.ProcessBackend"


class TestInMemory(Contract):
    path = "locking.testing.memory.InMemoryBackend"


class TestThirdParty(Contract):
    store = "third party"
    path = "tests.locking.backends.test_contract_local.LocalBackend"
