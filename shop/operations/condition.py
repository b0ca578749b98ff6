"""The condition of the system in sentences, from the live state."""

from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from django.db import connection
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from inventory.models import WriteStrategy
from locking.models import LockPolicy
from shop.operations.live import IN_MEMORY, LiveState
from shop.sales.guards import guard_title

LATE = timedelta(seconds=30)
"""Time without a finished job, or that a reservation has waited, after which a process is taken to
have stopped."""
LEVELS = ("bad", "warn", "good")


class Condition(NamedTuple):
    """One sentence about the system, with what to do about it."""

    level: str
    """One of LEVELS: sales fail or stock is at risk; something needs attention; all is well."""
    text: str
    advice: str = ""
    remedy: str = ""
    """The label of the link to the remedy; empty without one."""
    link: str = ""


def assess(state: LiveState) -> list[Condition]:
    """Return what is wrong, the worst first, or one sentence that all is well."""
    found = [*_stores(state), *_stock(state)]
    if state.policy:
        found += [*_policy(state.policy, state), *_processes(state)]
    if not state.policy and not found:
        found = [Condition("warn", _("A store did not respond in time. Trying again…"))]
    return sorted(found, key=lambda one: LEVELS.index(one.level)) or [_normal(state)]


def _stores(state: LiveState) -> Iterator[Condition]:
    down = state.down
    failing = _("Purchases are failing: %s stopped responding.")
    if "database" in down:
        name = "MariaDB" if connection.vendor == "mysql" else connection.display_name
        advice = _("Until it responds, the lock policy, orders and jobs are unknown.")
        yield Condition("bad", failing % name, advice)
    elif state.policy and state.is_lock_down:
        name = _("the active lock (%s)") % guard_title(state.policy.backend)
        yield Condition("bad", failing % name, *_switch(state))
    elif state.policy and state.nodes_down:
        text = _("A server of the active lock (%(lock)s) stopped responding: %(nodes)s.")
        words = {"lock": guard_title(state.policy.backend), "nodes": ", ".join(state.nodes_down)}
        advice = _("Restart it. Without a majority of the servers, purchases fail.")
        yield Condition("warn", text % words, advice)
    if "redis" in down:
        text = _("Redis stopped responding: queued sales and jobs have stopped.")
        advice = _("Until it responds, rates and running processes are unknown.")
        level = "bad" if state.queued_sales else "warn"
        yield Condition(level, text, advice)
    elif "cache" in down:
        yield Condition("warn", _("The cache stopped responding: pages are slower."))


def _switch(state: LiveState, target: str = "") -> tuple[str, ...]:
    """Return advice, label and link for a switch to a backend that responds."""
    if not (target := target or state.safe_target):
        return (_("No other lock responds. Restart the store of the active lock."),)
    link = f"?backend={target}&mode={WriteStrategy.CONDITIONAL}#switch"
    return "", _("Switch to %s…") % guard_title(target), link


def _stock(state: LiveState) -> Iterator[Condition]:
    wrong = [audit for audit in state.audit[1] if not audit.ok] if state.audit else []
    if wrong:
        text = _("Stock mismatch: %s.") % ", ".join(audit.sale for audit in wrong)
        breaches = " · ".join(breach.shown for breach in wrong[0].breaches)
        yield Condition("bad", text, breaches, _("Show the audit"), "#stock-audit")


def _policy(row: LockPolicy, state: LiveState) -> Iterator[Condition]:
    if row.mode == WriteStrategy.NAIVE and row.backend in IN_MEMORY:
        text = _("Overselling is possible: no lock between processes, unsafe writes (%s).")
        yield Condition("bad", text % guard_title(row.backend, row.mode), *_switch(state))
    elif row.mode == WriteStrategy.NAIVE:
        text = _("Overselling is possible if the lock fails: unsafe writes (%s).")
        guard = guard_title(row.backend, row.mode)
        yield Condition("warn", text % guard, *_switch(state, row.backend))
    if row.next_backend:
        text = _("Switching from %(old)s to %(new)s: each lock moves when its holder has finished.")
        old, new = (row.backend, row.mode), (row.next_backend, row.next_mode)
        words = {"old": guard_title(*old), "new": guard_title(*new)}
        advice = _("Started by %(by)s: “%(reason)s”.")
        by = {"by": row.changed_by or "–", "reason": pgettext("reason", row.reason)}
        yield Condition("warn", text % words, advice % by, _("Show the switch"), "#drain")


def _processes(state: LiveState) -> Iterator[Condition]:
    if "redis" in state.down:
        return  # jobs and reservations pass through it
    consumers = state.minute.processes["consumer"] if state.minute else None
    if state.queued_sales and consumers == 0:
        text = _("No consumer is running: orders of queued sales are not written.")
        yield Condition("bad", text, _("Start manage.py consume_orders."))
    elif state.oldest_reservation > LATE.seconds:
        text = _("Orders of queued sales are late: the oldest reservation has waited %.0f s.")
        advice = _("Read the logs of the consumers (manage.py consume_orders).")
        yield Condition("bad", text % state.oldest_reservation, advice)
    if state.last_job_at is None or state.as_of - state.last_job_at > LATE:
        is_gone = state.minute is not None and not state.minute.processes["worker"]
        text = (
            _("The worker has stopped: %s.") if is_gone else _("Scheduled jobs have stopped: %s.")
        )
        since = _("no job has finished in the last hour")
        if state.last_job_at:
            time = f"{timezone.localtime(state.last_job_at):%H:%M:%S}"
            since = _("no job has finished since %(time)s") % {"time": time}
        advice = _("Units of unpaid orders are not returned. Start a Celery worker and beat.")
        yield Condition("warn", text % since, advice)


def _normal(state: LiveState) -> Condition:
    text = _("Ready: no sale is open.")
    if state.open_sales:
        text = ngettext(
            "Selling normally: %d sale is open.",
            "Selling normally: %d sales are open.",
            state.open_sales,
        )
        text %= state.open_sales
    facts = [_("Active lock: %s") % guard_title(state.policy.backend)] if state.policy else []
    if state.audit:
        age = (state.as_of - state.audit[0]).total_seconds()
        ago = _("stock audit passed %.0f s ago") % age
        if age >= 120:
            ago = _("stock audit passed %.0f min ago") % (age / 60)
        facts.append(ago)
    return Condition("good", text, " · ".join(facts))
