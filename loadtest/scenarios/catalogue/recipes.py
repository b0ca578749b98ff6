"""The flawed locks of the textbooks: three in Redis and one in a MySQL table."""

import time

import redis
from django.utils.translation import gettext_noop

from loadtest.recipes.redis_textbook import SetnxBackend, SetnxExpireBackend
from loadtest.scenarios.scenario import Facts, scenario
from loadtest.scenarios.steps import LOCK, crash_and_wait
from loadtest.scenarios.testbed import BACKENDS, REDIS, TTL, Testbed
from locking.handler import create

RECIPES = "loadtest.recipes.redis_textbook"
MYSQL_ROW = "loadtest.recipes.mysql_row.MySQLRowRecipe"
MYSQL_SESSION = f"{BACKENDS}.mysql_session.MySQLSessionBackend"
SHORT_TTL, LONG_TTL, HOLD_SECONDS = 0.5, 30.0, 0.4
Recipe = type[SetnxBackend | SetnxExpireBackend]


@scenario(fault="killed", row="L5", broken="SETNX, DEL", repaired="SET NX PX")
def setnx_without_expiry(testbed: Testbed, is_repaired: bool) -> Facts:
    """Kill a holder of the recipe; then one of SET NX PX."""
    return _crash(testbed, is_repaired, SetnxBackend, "setnx")


@scenario(fault="killed", row="L6", broken="SETNX, EXPIRE, DEL", repaired="SET NX PX")
def crash_between_setnx_and_expire(testbed: Testbed, is_repaired: bool) -> Facts:
    """Kill a process between the two commands; then a holder of SET NX PX."""
    at = "redis_setnx_expire.between"
    return _crash(testbed, is_repaired, SetnxExpireBackend, "setnx_expire", at)


def _crash(testbed: Testbed, is_repaired: bool, recipe: Recipe, alias: str, at: str = "") -> Facts:
    if is_repaired:
        testbed.add_lock("set_px", f"{RECIPES}.SetExpireBackend")
        return crash_and_wait(testbed, "set_px", ttl=TTL)
    testbed.add_lock(alias, f"{RECIPES}.{recipe.__name__}")
    facts = crash_and_wait(testbed, alias, ttl=TTL, at=at)
    with redis.Redis.from_url(testbed.stores.redis.url) as client:
        facts["pttl"] = int(client.pttl(recipe.prefix + LOCK))  # -1 if the key never expires
        client.delete(recipe.prefix + LOCK)
    return facts


@scenario(fault="late", row="L7", broken="SET NX PX, DEL", repaired="redis")
def delete_successors_lock(testbed: Testbed, is_repaired: bool) -> Facts:
    """Let A exceed its lease, B get the lock, A release it, and C ask for it."""
    alias = "redis" if is_repaired else "set_px"
    testbed.add_lock(alias, REDIS if is_repaired else f"{RECIPES}.SetExpireBackend")
    late, holder, third = (testbed.worker(f"buyer {letter}") for letter in "ABC")
    lock = {"alias": alias, "name": LOCK}
    late.call("acquire", timeout=5, ttl=SHORT_TTL, renew=False, **lock)
    second = holder.call("acquire", timeout=5, ttl=LONG_TTL, **lock)
    time.sleep(HOLD_SECONDS)
    released = late.call("release", name=LOCK)
    answer = third.call("acquire", timeout=HOLD_SECONDS, ttl=LONG_TTL, **lock)
    if answer["ok"]:
        testbed.mark_deleted("buyer B", by="buyer A")
    time.sleep(HOLD_SECONDS)
    for process in (third, holder) if answer["ok"] else (holder,):
        process.call("release", name=LOCK)
    return {
        "ttl": SHORT_TTL,
        "second_waited": round(second["seconds"], 3),
        "third_waited": round(answer["seconds"], 3),
        "third_granted": int(answer["ok"]),
        "release_refused": int(released.get("error") == "LockLost"),
        "broke": answer["ok"],
    }


@scenario(
    fault="killed",
    row="L3",
    broken=gettext_noop("INSERT, DELETE in MySQL"),
    repaired="mysql_session",
    needs="MariaDB",
)
def mysql_row_left_by_crash(testbed: Testbed, is_repaired: bool) -> Facts:
    """Kill the owner of a row that never expires; then of a lock that ends with its connection."""
    alias = testbed.add_database()
    if is_repaired:
        testbed.add_lock("mysql_session", MYSQL_SESSION, LOCATION=alias)
        return crash_and_wait(testbed, "mysql_session", ttl=TTL)
    testbed.add_lock("mysql_row", MYSQL_ROW, LOCATION=alias)
    facts = crash_and_wait(testbed, "mysql_row", ttl=TTL)
    table = create("mysql_row", {"BACKEND": MYSQL_ROW, "LOCATION": alias})
    facts["rows"] = int(table.break_lock(LOCK))
    table.close()
    return facts
