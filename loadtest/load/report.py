"""Reports for people: sentences about runs."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from inventory.models import WriteStrategy
from loadtest.kernel.faults import FAULTS, PAUSE_SECONDS
from loadtest.kernel.report import duration, grouped
from shop.sales.guards import guard_title

Run = dict[str, Any]
VERDICTS = {
    "oversold": gettext_noop("oversold"),
    "undersold": gettext_noop("undersold"),
    "not-run": gettext_noop("not run"),
    "ok": gettext_noop("exact"),
}
"""The worst one first."""
SPREAD = {"sold": 0, "oversold": 0, "orders_per_second": 1}
"""Figures of several runs, and the decimals of all their values."""
REPORT = " · "
"""Separates a write strategy from the name of a report, where two are drawn in one chart."""
PROOF = re.compile(r"(?:(\w+), )?(.*?process )(\d+)(.*)")
_PROOFS = (
    gettext_noop("process %(pid)s stopped (state T)"),
    gettext_noop("process %(pid)s ended by SIGKILL"),
    gettext_noop("replica cut off from process %(pid)s, promoted after its SIGKILL"),
)


def met(run: Run) -> bool:
    """Return True if rows and history of a run show what its guard promises."""
    breaches = _breaches(run)
    if run["verdict"] != "ok":  # an oversell that is expected breaks the ledger, but nothing else
        breaches = [one for one in breaches if not one.startswith(("audit: ", "fence: "))]
    if breaches:
        return False
    return run["verdict"] != "not-run" and run["expected"] in (None, run["verdict"])


def _breaches(run: Run) -> list[str]:
    """Return the breaches that the checker found."""
    return list(run.get("checked", {}).get("breaches", ()))


def sentence(runs: Sequence[Run], *, several: bool = False) -> str:
    """Return "Without a lock: 200 sold of 50 in stock. With Redis: exactly 50.".

    `several`: name the write strategies, although all of these runs were naive.
    """
    sentences, absent = [], defaultdict(list)
    for name, group in by_guard(runs, several=several):
        if done := [run for run in group if run["verdict"] != "not-run"]:
            sentences.append(_of_guard(name, done))
        else:
            absent[group[0]["why"].rstrip(".")].append(name)
    for why, names in absent.items():
        values = {"guard": _(", ").join(names), "why": why}
        sentences.append(_("%(guard)s did not run: %(why)s.") % values)
    # Chinese has no space after its full stop.
    return " ".join(sentences).replace("。 ", "。")


def headline(runs: Sequence[Run]) -> str:
    """Return `sentence` of two guards, or "8 guards: 3 oversold, 5 exact" of more."""
    guards = by_guard(runs)
    if len(guards) <= 2:
        return sentence(runs)
    by_run = [{run["verdict"] for run in group} for _name, group in guards]
    found = Counter(next(one for one in VERDICTS if one in verdicts) for verdicts in by_run)
    counts = [
        _("%(count)s %(verdict)s") % {"count": found[one], "verdict": _(name)}
        for one, name in VERDICTS.items()
        if found[one]
    ]
    return _("%(count)s guards: %(verdicts)s") % {
        "count": len(guards),
        "verdicts": _(", ").join(counts),
    }


def spreads(runs: Sequence[Run]) -> list[Run]:
    """Return the figures of each guard that ran more than once: median, least and most."""
    found = []
    for name, group in by_guard(runs):
        done = [run for run in group if run["verdict"] != "not-run"]
        if len(done) > 1:
            figures = {
                one: spread([run[one] for run in done], digits) for one, digits in SPREAD.items()
            }
            wait = spread([run["wait_ms"]["p99"] for run in done], 0)
            found.append({"guard": name, "runs": len(done), **figures, "p99": wait})
    return found


def spread(values: Sequence[float], digits: int) -> str:
    """Return the median and, if the values differ, the least and the most."""
    found = min(values), median(values), max(values)
    least, middle, most = (f"{one:,.{digits}f}" for one in found)
    return middle if least == most else f"{middle} ({least}–{most})"


def so_far(run: Run, *, several: bool = False) -> str:
    """Return "Without a lock: 61 sold of 50 in stock." for a run under way; see `sentence`."""
    values = {**grouped(run), "guard": title(run["backend"], guard_of(run, several=several))}
    return _("%(guard)s: %(sold)s sold of %(stock)s in stock.") % values


def words(run: Run) -> str:
    """Return the verdict in the active language, and if it is unexpected."""
    verdict = _(VERDICTS[run["verdict"]])
    return verdict if met(run) else _("%(verdict)s: unexpected") % {"verdict": verdict}


def injected(run: Run) -> list[str]:
    """Return the names of the faults that hit a run, without those that came too late."""
    return [one["name"] for one in run.get("faults", ()) if one["at"] is not None]


def fault_words(fault: dict[str, Any]) -> dict[str, Any]:
    """Return an injected fault with its name and proof in the active language."""
    told = fault["proof"]
    if proof := PROOF.fullmatch(told):
        text = f"{proof[2]}%(pid)s{proof[4]}"
        told = _(", ").join(filter(None, (proof[1], _(text) % {"pid": proof[3]})))
    return {**fault, "words": FAULTS[fault["name"]].button, "proof": told}


def with_lost_updates(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """Return each guard that lost updates, and its run that oversold most."""
    groups = [(name, worst(group)) for name, group in by_guard(runs)]
    return [(name, run) for name, run in groups if run.get("lost_updates")]


def explain(run: Run) -> str:
    """Return sentences: the first lost update of a run, and the sum of all of them."""
    lost = run["lost_updates"]
    missing = lost["units"] - lost["counted"]
    left = {(one["do"], one["actor"]): one["quantity"] for one in lost["events"]}
    read, first, second = (
        left[key] for key in (("read", "buyer A"), ("write", "buyer A"), ("write", "buyer B"))
    )
    values = {
        **lost,
        **{"read": read, "a_left": first, "b_left": second},
        **{"a": read - first, "b": read - second, "both": 2 * read - first - second},
        **{"missing": missing, "seconds": duration(lost["seconds"])},
    }
    total = ngettext(
        "In this run, %(units)s units were sold and the stock went down by %(counted)s: "
        "%(missing)s was not counted.",
        "In this run, %(units)s units were sold and the stock went down by %(counted)s: "
        "%(missing)s were not counted.",
        missing,
    )
    # Of an incomplete recording, these two do not add up to what the rows show.
    if (again := lost.get("taken_again", 0)) and lost["put_back"] - again == missing:
        told = _(
            "Of all writes, %(times)s were computed from a stock that was out of date: together, "
            "they put %(put_back)s sold units back into the stock and took %(taken_again)s "
            "out again."
        )
        total = f"{told} {total}"
    pair = _(
        "Buyers A and B both read a stock of %(read)s before either wrote. A sold %(a)s and wrote "
        "%(a_left)s, then B sold %(b)s and wrote %(b_left)s: %(both)s sold, and the stock went "
        "down by %(b)s."
    )
    if (found := left.get(("write", "other buyers"))) is not None:
        values |= {"found": found, "back": second - found}
        pair = _(
            "Buyers A and B both read a stock of %(read)s before either wrote. B wrote "
            "%(seconds)s after its read; by then the sales of A and others had reduced the stock "
            "to %(found)s. B sold %(b)s and wrote %(b_left)s: this sale raised the stock by "
            "%(back)s."
        )
        if _was_paused(run):
            pair = _(
                "Buyers A and B both read a stock of %(read)s before either wrote. B, which "
                "held the lock, was paused past its lease; meanwhile the next holders reduced the "
                "stock to %(found)s. B woke up after %(seconds)s, sold %(b)s and wrote "
                "%(b_left)s: this sale raised the stock by %(back)s."
            )
    return f"{pair} {total}".replace("。 ", "。") % grouped(values)


def _was_paused(run: Run) -> bool:
    """Return True if the second buyer, a holder, took so long because its process was stopped."""
    is_injected = any(label == "pause-holder" for _at, label in run.get("marks", ()))
    return (
        run["backend"] != "none" and is_injected and run["lost_updates"]["seconds"] >= PAUSE_SECONDS
    )


def by_guard(runs: Sequence[Run], *, several: bool = False) -> list[tuple[str, list[Run]]]:
    """Return the runs of each guard under its name, in their order.

    The name has the write strategy unless all runs are naive.
    """
    several = several or any(
        run["discipline"].partition(REPORT)[0] != WriteStrategy.NAIVE for run in runs
    )
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(guard_of(run, several=several), []).append(run)
    return list(found.items())


def guard_of(run: Run, *, several: bool) -> str:
    """Return the name of a run's guard, with that of its report if there is one."""
    strategy, sign, label = run["discipline"].partition(REPORT)
    return f"{guard_title(run['backend'], strategy if several else '')}{sign}{label}"


def run_of(run: Run, repeats: int, *, several: bool) -> str:
    """Return the guard of a run and, of several runs, its number."""
    names = {**run, "guard": guard_of(run, several=several), "repeats": repeats}
    return _("%(guard)s, run %(repeat)s of %(repeats)s") % names if repeats > 1 else names["guard"]


def worst(runs: Iterable[Run]) -> Run:
    """Return the run that oversold most, else undersold most; of equal ones, the slowest."""

    def badness(run: Run) -> tuple[int, int, float]:
        wait = run.get("wait_ms", {}).get("p99", 0.0)
        return run["oversold"], run.get("undersold", 0), wait

    return max(runs, key=badness)


def title(backend: str, name: str) -> str:
    """Return "Without a lock" or "With Redis", with what follows the lock in the guard's name."""
    if backend in ("none", "process"):
        text = _("Without a lock") if backend == "none" else _("With a process lock")
        return text + name.removeprefix(guard_title(backend))
    return _("With %(lock)s") % {"lock": name}


def _of_guard(name: str, runs: Sequence[Run]) -> str:
    sold = sorted(run["sold"] for run in runs)
    values = grouped({"stock": runs[0]["stock"], "runs": len(runs)})
    values["guard"] = title(runs[0]["backend"], name)
    if sold[0] == sold[-1] == runs[0]["stock"]:
        if len(runs) == 1:
            return _("%(guard)s: exactly %(stock)s.") % values
        return _("%(guard)s: exactly %(stock)s in each of %(runs)s runs.") % values
    values["sold"] = f"{sold[0]:,}" if sold[0] == sold[-1] else f"{sold[0]:,}–{sold[-1]:,}"
    if len(runs) == 1:
        return _("%(guard)s: %(sold)s sold of %(stock)s in stock.") % values
    if sold[0] == sold[-1]:
        return (
            _("%(guard)s: %(sold)s sold of %(stock)s in stock, in each of %(runs)s runs.") % values
        )
    return _("%(guard)s: %(sold)s sold of %(stock)s in stock, over %(runs)s runs.") % values


def surprises(runs: Sequence[Run]) -> list[str]:
    """Return a line for each run that does not show what its guard promises, and the reason."""
    found = []
    for run in runs:
        if met(run):
            continue
        values = {
            "guard": guard_of(run, several=True),
            "number": run["repeat"],
            "verdict": _(VERDICTS[run["verdict"]]),
            "why": "; ".join([run["why"], *_breaches(run)]),
        }
        text = _("%(guard)s, run %(number)s: %(verdict)s (%(why)s)")
        if run["expected"] not in (None, run["verdict"]):
            text = _("%(guard)s, run %(number)s: %(verdict)s instead of %(expected)s (%(why)s)")
            values["expected"] = _(VERDICTS[run["expected"]])
        found.append(text % values)
    return found
