"""Check the TLA+ modules of docs/models with TLC, and compare it with the search in Python.

    .venv/bin/python -m tools.tlc path/to/tla2tools.jar[:further.jar]

For each variant of loadtest/protocols: a variant that keeps its promises must have exactly as many
states under TLC; one that breaks a promise must break it after as many steps. Exit code 1 if a
variant differs. Needs Java; TLC: https://github.com/tlaplus/tlaplus/releases
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadtest.charts import marked
from loadtest.protocols import PROTOCOLS
from loadtest.protocols.search import NAMES, TEXTS, Result, search

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "docs/models"
PAGE, PART = ROOT / "docs/explanation/models.md", "tlc"
COLUMNS = "model", "variant", "states, Python", "states, TLC", "TLC"
INVARIANTS = {
    "never oversold": "NeverOversold",
    "at most one order per key": "OneOrderPerKey",
    "no acknowledged order lost": "NoOrderLost",
    "tokens unique and growing": "TokensGrow",
    "stock conserved": "StockConserved",
    "one holder": "OneHolder",
    "one outcome": "OneOutcome",
    "no accepted reservation rejected": "NoReservationRejected",
    "no accepted reservation lost": "NoReservationLost",
    "no unit lost": "NoUnitLost",
}
CLIENTS = {"purchase": "Buyers", "switch": "Processes", "redlock": "Clients", "queue": "Customers"}
"""Constants whose sets have as many members as a state of the search in Python has clients."""
OTHERS: dict[str, dict[str, Any]] = {
    "purchase": {"MaxTries": 2},
    "queue": {"Writers": {"w1", "w2"}},
}
SECONDS = 900


def module(model: str) -> str:
    """Return the name of a model's module in TLA+."""
    return "RedLock" if model == "redlock" else model.capitalize()


def constants(model: str, rules: dict[str, Any]) -> dict[str, Any]:
    """Return the constants of a module for these rules."""
    start = PROTOCOLS[model].start(type("Rules", (), rules))
    found: dict[str, Any] = {CLIENTS[model]: set(NAMES[: len(start[0])])}
    found |= OTHERS.get(model, {})
    if model != "switch":
        found["MaxFaults"] = start.faults
    for rule, value in rules.items():
        if rule not in ("buyers", "clients"):
            found["".join(word.capitalize() for word in rule.split("_"))] = value
    return found


def tla(value: Any) -> str:
    """Return a value in TLA+."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, list | set):
        return "{" + ", ".join(tla(one) for one in sorted(value)) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def check(classpath: str, model: str, variant: str) -> Result:
    """Return TLC's verdict on a variant; its trace is that of actions, without sentences."""
    texts, protocol = TEXTS[model], PROTOCOLS[model]
    one = texts["variants"][variant]
    promises = [*protocol.promises, *protocol.promises_at_rest]
    if "breaks" in one:
        promises = [one["breaks"]]
    rules = texts["rules"] | one.get("rules", {})
    lines = ["SPECIFICATION Spec", "CHECK_DEADLOCK FALSE"]
    lines += [f"CONSTANT {name} = {tla(value)}" for name, value in constants(model, rules).items()]
    lines += [f"INVARIANT {INVARIANTS[promise]}" for promise in promises]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODELS / f"{module(model)}.tla", folder)
        config = Path(folder, "variant.cfg")
        config.write_text("\n".join(lines) + "\n")
        java = ["java", "-XX:+UseParallelGC", "-cp", classpath, "tlc2.TLC", "-workers", "1"]
        command = [*java, "-noGenerateSpecTE", "-config", config.name, f"{module(model)}.tla"]
        if not shutil.which("java"):
            raise SystemExit(f"TLC failed on {model} {variant}: Java is not installed.")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    broken = re.search(r"Invariant (\w+) is violated", done.stdout)
    states = re.findall(r"(\d+) distinct states found", done.stdout)
    if not states or not (broken or "No error has been found" in done.stdout):
        raise SystemExit(f"TLC failed on {model} {variant}:\n{done.stdout}{done.stderr}")
    steps = re.findall(r"^State \d+: <(\w+)", done.stdout, re.M)[1:]
    trace = tuple((action, "") for action in steps) if broken else ()
    return Result("violation" if broken else "no violation", int(states[-1]), trace=trace)


def main(classpath: str) -> int:
    """Check all variants, and write the table of the page."""
    rows, differ = [], 0
    for model, protocol in PROTOCOLS.items():
        for variant in TEXTS[model]["variants"]:
            python, found = search(protocol, variant), check(classpath, model, variant)
            is_equal = (found.verdict, len(found.trace)) == (python.verdict, len(python.trace))
            is_equal &= bool(found.trace) or found.states == python.states
            verdict = f"breaks it at step {len(found.trace)}" if found.trace else found.verdict
            verdict += "" if is_equal else " (DIFFERS)"
            rows.append([model, variant, str(python.states), str(found.states), verdict])
            print(" | ".join(rows[-1]), flush=True)
            differ += not is_equal
    if not differ:
        marked.write(PAGE, PART, f"\n{marked.table(COLUMNS, rows)}\n")
    print(f"{len(rows)} variants, {differ} differ.")
    return 1 if differ else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
