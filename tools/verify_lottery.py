#!/usr/bin/env python3
"""Draw the positions of a waiting room again from its public record; exit 1 if it is wrong."""

import argparse
import hashlib
import json
import sys
from typing import Any
from urllib.request import urlopen

FIELDS = {"sale", "mode", "commitment", "root", "seed", "list", "late"}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def draw(record: dict[str, Any]) -> list[str]:
    """Return the tickets in the order of their positions."""
    salt = record["seed"] + record["root"]
    return sorted(record["list"], key=lambda ticket: sha256(salt + ticket))


def differences(record: dict[str, Any], commitment: str | None = None) -> list[str]:
    """Return a sentence for each claim of the record that does not hold."""
    if set(record) - {"earlier"} != FIELDS or record["mode"] != "lottery":
        return ["This is not the record of a lottery."]
    if not record["seed"]:
        return ["The positions are not drawn yet."]
    tickets = record["list"]
    claims = {
        "The commitment is not that of the seed.": sha256(record["seed"]) == record["commitment"],
        "The commitment is not the one you noted.": commitment in (None, record["commitment"]),
        "The root is not that of the list.": sha256("\n".join(sorted(tickets))) == record["root"],
        "A ticket is on the list twice.": len(set(tickets)) == len(tickets),
        "The commitment of an earlier seed is not that of the seed.": all(
            sha256(one["seed"]) == one["commitment"] for one in record.get("earlier", ())
        ),
    }
    return [sentence for sentence, holds in claims.items() if not holds]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", help="address of record.json, or the name of a saved file")
    parser.add_argument("ticket", nargs="?", help="print the position of this ticket")
    parser.add_argument("--commitment", help="the commitment that the page showed before the sale")
    asked = parser.parse_args(arguments)
    is_url = "://" in asked.record
    with urlopen(asked.record) if is_url else open(asked.record, "rb") as file:  # noqa: S310
        record = json.load(file)
    wrong = differences(record, asked.commitment)
    for one in record.get("earlier", ()):
        print(f"The room was reset at {one['reset_at']}: {one['reason']}")
    if asked.ticket and not wrong:
        positions = {ticket: position for position, ticket in enumerate(draw(record), 1)}
        print(f"{asked.ticket}: {positions.get(asked.ticket, 'not on the list at the opening')}")
    print("\n".join(wrong) or f"The lottery of {len(record['list'])} tickets is correct.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
