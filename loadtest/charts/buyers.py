"""The buyers of one run as signs, a sign for each buyer or for several."""

import json
from math import ceil
from typing import Any

from django.utils.translation import gettext as _

MOST_SIGNS = 200


def buyers(run: dict[str, Any]) -> dict[str, Any]:
    """Return words, number and signs of each state of a buyer, and the buyers of a sign.

    `replay` is what lab.js needs to show them at any moment of the run.
    """
    per_sign = ceil(run["buyers"] / MOST_SIGNS)
    states, end = [], 0
    for name, words, sign, count in (
        ("bought", _("bought"), "●", run["sold"] - run["oversold"]),
        ("over", _("bought beyond the stock"), "▲", run["oversold"]),
        ("refused", _("refused"), "✕", max(0, run["served"] - run["sold"])),
        ("waiting", _("waiting"), "○", run["buyers"] - max(run["served"], run["sold"])),
    ):
        begin, end = end, end + count
        signs = sign * (ceil(end / per_sign) - ceil(begin / per_sign))
        if name == "over" and count:  # a few of very many
            signs = signs or sign
        states.append({"name": name, "words": words, "sign": sign, "count": count, "signs": signs})
    replay = {name: run[name] for name in ("buyers", "stock", "sold_at")} | {"per_sign": per_sign}
    # After a fault, its late write explains the oversell; without one, updates are lost all along.
    is_hit = run.get("faults") and run["lost_updates"]
    replay["decisive"] = run["lost_updates"]["at"] if is_hit else None
    return {"states": states, "per_sign": per_sign, "replay": json.dumps(replay)}
