"""F3: a Redis master dies before its replica has heard of the lock, and the replica takes over."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from devservers import Redis
from loadtest.faults.injectors import CutReplication, KillServers
from loadtest.faults.proxy import Proxy
from loadtest.scenarios.late_write import behind_anothers_back
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import REDLOCK, Stage

LONG = 30.0


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """A master dies while its lock is held; there are four more, or there is one replica."""
    return _one_of_five(stage) if is_repaired else _the_only_one(stage)


def _the_only_one(stage: Stage) -> dict[str, Any]:
    master = stage.enter(Redis())
    replica = stage.enter(Redis(replica_of=master))
    address = stage.enter(Proxy(master.port))
    stage.redis_lock(f"redis://{address.url}/0", TTL=LONG)
    stage.guard("redis", "naive")
    cut = CutReplication(replica, lane="replica")
    stage.strike(cut)

    def fail_over() -> None:
        stage.strike(KillServers([master], lane="master"))
        stage.gone("buyer A")
        cut.promote()
        stage.mark("replica", "promoted")
        address.redirect(replica.port)

    return behind_anothers_back(stage, meanwhile=fail_over)


def _one_of_five(stage: Stage) -> dict[str, Any]:
    masters = stage.five()
    stage.lock("redlock", REDLOCK, [master.url for master in masters], TTL=LONG)
    stage.guard("redlock", "naive")

    def kill_one() -> None:
        stage.strike(KillServers(masters[:1], lane="master 1 of 5"))

    return behind_anothers_back(stage, meanwhile=kill_one, timeout=1.0)


SCENARIO = Scenario(
    name="failover-before-replication",
    row="F3",
    title=_("The master dies before its replica has the lock"),
    broken="redis + naive, one replica",
    repaired="redlock + naive, five masters",
    sentences=(
        _(
            "Buyer A's lock was on the master alone when it was killed; the promoted replica gave "
            "it to buyer B within %(b_second_waited).2f s."
        ),
        _(
            "Both leases were in force for %(b_overlap_seconds).2f s and %(b_sold)d were sold of "
            "%(b_stock)d."
        ),
        _(
            "With five masters the death of one changed nothing: buyer B was kept out for "
            "%(r_second_waited).1f s, and %(r_sold)d was sold of %(r_stock)d."
        ),
    ),
    repair=_(
        "RedLock asks a majority of independent masters. Without it the stock row's own guard: the "
        "tokens grow through a failover, so that fenced and conditional refuse the late write."
    ),
    immune=_("redlock, zookeeper; the database as long as its own replication is synchronous."),
    play=play,
)
