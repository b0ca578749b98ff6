"""The course: what the field learned about locks, in that order, a step for each lesson."""

from dataclasses import dataclass

from django.utils.translation import gettext_lazy as _

from loadtest.history.source import Excerpt
from loadtest.scenarios.scenario import Text

REDIS_RECIPES = "loadtest/recipes/redis_textbook.py"
STOCK, REDIS_SCRIPTS = "inventory/stock.py", "locking/backends/lua"
SET_NX_PX = Excerpt(REDIS_RECIPES, "self._client.set(key")
NAIVE_WRITE = Excerpt(STOCK, "WRITE = ")
ONE_PROCESS = Excerpt("locking/backends/process.py", "owned = self._owned.get", "return Grant")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A lesson. Its text and what to notice have at most ninety words together in English."""

    name: str
    title: Text
    text: Text
    notice: Text
    broken: Excerpt
    repaired: Excerpt
    scenarios: tuple[str, ...]
    """The first one provides the picture."""


COURSE = (
    Step(
        name="race",
        title=_("The race"),
        text=_(
            "A purchase reads the stock, computes what is left and writes it back. If another "
            "buyer reads between the two, both compute the same number, and one unit is sold "
            "twice. A lock makes the second buyer wait until the first has written. Here there is "
            "none: everyone is granted at once."
        ),
        notice=_("Both buyers read 1 and both write 0. No error is raised anywhere."),
        broken=Excerpt("locking/backends/none.py", "def acquire", "return Grant", "return Grant"),
        repaired=ONE_PROCESS,
        scenarios=("no-lock",),
    ),
    Step(
        name="two-processes",
        title=_("Two processes"),
        text=_(
            "Inside one process a dictionary of holders is enough. A web shop runs several "
            "processes, often on several machines, and each has a dictionary of its own. So each "
            "grants the lock, and the race is back. The holders must be written where all "
            "processes look: in a store that they share, such as Redis."
        ),
        notice=_("The lock worked perfectly, twice. Tests with one process never see this."),
        broken=ONE_PROCESS,
        repaired=Excerpt(f"{REDIS_SCRIPTS}/redis_take.lua", "if not state[1]", "grant(caller"),
        scenarios=("lock-of-one-process",),
    ),
    Step(
        name="setnx",
        title=_("SETNX and a crash"),
        text=_(
            "SETNX creates a key only if it does not exist: the first caller gets the lock, and "
            "DEL releases it. But a holder that crashes never sends its DEL, and the key stays. No"
            " one buys again until a person deletes it. A lock in a store needs an end of its own,"
            " a lease: SET NX PX creates the key together with its expiry."
        ),
        notice=_("PTTL -1 means that the key never expires. The next buyer can only give up."),
        broken=Excerpt(REDIS_RECIPES, ".setnx(key"),
        repaired=SET_NX_PX,
        scenarios=("setnx-without-expiry",),
    ),
    Step(
        name="expire",
        title=_("SETNX, then EXPIRE"),
        text=_(
            "An old recipe sets the expiry with a second command. A process can be killed between "
            "the two, and then the key again stays forever. It is rare, so it happens during the "
            "largest sale. Two writes that belong together have to be one command, or one script."
        ),
        notice=_("The crash lies between two lines that look like one step."),
        broken=Excerpt(REDIS_RECIPES, "if not self._client.setnx", "return True", "reach("),
        repaired=SET_NX_PX,
        scenarios=("crash-between-setnx-and-expire",),
    ),
    Step(
        name="lease",
        title=_("The work outlasts the lease"),
        text=_(
            "A lease ends on time, whether its holder has finished or not. If the work takes "
            "longer, the next buyer is granted the lock while the first one still writes. No fixed"
            " length is right: a slow payment, a full disk or a busy machine exceeds it. The "
            "holder has to extend its lease for as long as it works."
        ),
        notice=_("The lease ends before the write, and two buyers hold the lock."),
        broken=SET_NX_PX,
        repaired=Excerpt("locking/lease/lease.py", "ttl = None", "self.claim.deadline"),
        scenarios=("work-outlasts-lease",),
    ),
    Step(
        name="owner",
        title=_("Another buyer's lock"),
        text=_(
            "A holder whose lease has ended still sends its DEL. By then the key belongs to the "
            "next buyer, and deleting it lets a third one in. A release must first compare the "
            "owner, and nothing may happen between the comparison and the deletion. Redis runs a "
            "Lua script without interruption."
        ),
        notice=_("Buyer B did everything right, and lost its lock all the same."),
        broken=Excerpt(REDIS_RECIPES, "def release", "self._client.delete", "self._client.delete"),
        repaired=Excerpt(f"{REDIS_SCRIPTS}/redis_release.lua", "if holder and holder", "end"),
        scenarios=("delete-successors-lock",),
    ),
    Step(
        name="watchdog",
        title=_("The watchdog"),
        text=_(
            "How long should a lease be? A long lease blocks the sale after a crash, and a short "
            "lease ends during the work. A watchdog solves this: a thread of the holder extends a "
            "short lease every third of its length. When the process dies, so does the thread, and"
            " the lock is free within one short lease."
        ),
        notice=_("Compare how long buyer B waits for the killed holder."),
        broken=Excerpt("loadtest/scenarios/catalogue/holders.py", "LONG_TTL", '"""'),
        repaired=Excerpt("locking/lease/watchdog.py", "elif lease.renew_at", "self._renew, lease"),
        scenarios=("holder-killed",),
    ),
    Step(
        name="fence",
        title=_("A paused holder"),
        text=_(
            "A process can stop at any line: a virtual machine is moved, memory is swapped, a C "
            "call keeps the GIL. Its watchdog stops with it. When it wakes, the lock has a new "
            "holder, and it writes without knowing. No lease can help. Each grant therefore has a "
            "rising number, a token, and the stock row rejects a token older than its own."
        ),
        notice=_("Both believe that they hold the lock. Only the stock row can decide."),
        broken=NAIVE_WRITE,
        repaired=Excerpt(STOCK, "WRITE_CLAIMED = ", "WHERE id"),
        scenarios=("holder-paused", "gil-held"),
    ),
    Step(
        name="failover",
        title=_("Failover and RedLock"),
        text=_(
            "Redis replicates after it has replied. If the master dies before its replica has "
            "received the key, the promoted replica grants the lock again. RedLock asks five "
            "independent masters instead and counts: three votes are a lock, and any two groups of"
            " three have a master in common."
        ),
        notice=_("The promoted replica knows nothing of the first holder."),
        broken=Excerpt(
            "loadtest/scenarios/testbed.py", "def add_lock", "settings.LOCKS", "stores.redis.url"
        ),
        repaired=Excerpt("loadtest/scenarios/testbed.py", "def use_redlock", "self.use("),
        scenarios=("failover-before-replication",),
    ),
    Step(
        name="redlock",
        title=_("The RedLock debate"),
        text=_(
            "In 2016 Martin Kleppmann and Salvatore Sanfilippo argued whether five masters are "
            "enough. RedLock assumes that clocks run evenly and that no master forgets its vote. A"
            " clock that jumps, or a master that restarts empty, breaks that. A delayed restart "
            "repairs the second; only a fence repairs the first."
        ),
        notice=_("Three of five voted for A, and three of five voted for B."),
        broken=Excerpt("locking/backends/redlock/backend.py", '"RESTART_DELAY": seconds'),
        repaired=Excerpt(
            "locking/backends/redlock/quorum.py", "if restart_delay", "self.votes_from"
        ),
        scenarios=("redlock-clock-jump", "redlock-amnesia"),
    ),
    Step(
        name="zookeeper",
        title=_("ZooKeeper: herd or queue"),
        text=_(
            "ZooKeeper replicates before it replies, and a session replaces the lease: the node of"
            " a dead process disappears. If all waiters watch the same node, each release wakes "
            "every one of them, and all but one wake for nothing. In a queue each waiter watches "
            "only the node before its own. The same holds for polling in Redis."
        ),
        notice=_("Count the requests. The lock is correct in both halves."),
        broken=Excerpt(
            "loadtest/recipes/zookeeper_herd.py",
            "except NodeExistsError",
            "session.wait_gone",
            "session.wait_gone",
        ),
        repaired=Excerpt(
            "locking/backends/zookeeper/queue.py", "slots is None or", "return ahead[-1:]"
        ),
        scenarios=("herd-against-queue", "polling-against-push"),
    ),
    Step(
        name="mysql",
        title=_("A lock in MySQL"),
        text=_(
            "A table with a unique name is a lock as well: INSERT acquires, DELETE releases. But "
            "rows do not expire, so the row of a crashed holder stays, and an INSERT cannot wait. "
            "GET_LOCK belongs to the connection: the server queues the waiters and frees the lock "
            "the moment the connection ends."
        ),
        notice=_("The process is gone, its row is not."),
        broken=Excerpt(
            "loadtest/recipes/mysql_row.py", "insert = f", "return Grant", "INSERT {ignore}"
        ),
        repaired=Excerpt("locking/backends/mysql_session.py", "    mint = TOKEN", "owns = "),
        scenarios=("mysql-row-left-by-crash",),
    ),
    Step(
        name="commit",
        title=_("Released before the commit"),
        text=_(
            "Until a transaction commits, others read the old stock. A lock that is released "
            "inside the transaction lets the next buyer read a number that is about to change. It "
            "happens easily: a decorator inside another one, or ATOMIC_REQUESTS. The lock goes "
            "around the transaction, never inside it."
        ),
        notice=_("The lock was never held twice, and one unit was sold twice."),
        broken=Excerpt(
            "loadtest/load/shop_worker.py",
            "if lease is not None and early",
            "lease.backend.release",
            "lease.backend.release",
        ),
        repaired=Excerpt("shop/purchase/group_commit.py", "with lock as lease", "_write_group("),
        scenarios=("release-before-commit",),
    ),
    Step(
        name="shop",
        title=_("What this shop does"),
        text=_(
            "The default needs no perfect lock. One UPDATE checks the stock and the token and "
            "takes the unit in the same statement; the lock only keeps buyers from queueing in the"
            " database. Even a switch of the lock during a sale cannot oversell: its epoch counts "
            "before every token, and the row rejects holders of an earlier one."
        ),
        notice=_("The forced switch oversells under naive. The drained one does not."),
        broken=NAIVE_WRITE,
        repaired=Excerpt(STOCK, "CHANGE = ", "COALESCE(%s, fence_token))"),
        scenarios=("switch-under-load",),
    ),
)


def step_of(scenario: str) -> Step:
    """Return the step that shows the scenario."""
    return next(step for step in COURSE if scenario in step.scenarios)
