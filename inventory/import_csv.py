"""Import of products from a CSV file: all rows or none."""

import csv
from collections import Counter
from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.db import transaction

from inventory.models import Product

REQUIRED = ("slug", "name", "price")
OPTIONAL = ("name_zh", "description", "description_zh", "picture", "is_listed")


class ImportRefused(Exception):
    """The file is invalid; its arguments are lines of text, one for each fault."""


def import_products(lines: Iterable[str]) -> int:
    """Create or update (by slug) the products of a CSV file; return their number.

    Columns that the file does not have keep their values. Raise ImportRefused without changing
    anything if a row is invalid.
    """
    products = _read(lines)
    with transaction.atomic():
        for row in products.values():
            Product.objects.update_or_create(slug=row["slug"], defaults=row)
    return len(products)


def _read(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the rows by slug, in small letters: MariaDB ignores their case."""
    products: dict[str, dict[str, str]] = {}
    rows = csv.DictReader(lines, strict=True)
    problems: list[str] = []
    try:
        problems += _problems_of_header(list(rows.fieldnames or ()))
        for row in () if problems else rows:
            name, found = (row.get("slug") or "").casefold(), _problems_of_row(row)
            if name in products:
                found.append(f"slug: {row['slug']!r} was used before")
            problems += [f"line {rows.line_num}: {problem}" for problem in found]
            products[name] = row
    except csv.Error as error:
        problems.append(f"line {rows.reader.line_num}: {error}")
    except UnicodeDecodeError:
        problems.append(f"line {rows.line_num + 1} or below: not UTF-8")
    if not products and not problems:
        problems.append("line 2: no product found")
    if problems:
        raise ImportRefused(*problems)
    return products


def _problems_of_header(names: list[str]) -> list[str]:
    missing = [f"line 1: column {name!r} is missing" for name in REQUIRED if name not in names]
    known, counts = REQUIRED + OPTIONAL, Counter(names)
    unknown = [f"line 1: column {name!r} is unknown" for name in counts if name not in known]
    twice = [f"line 1: column {name!r} comes twice" for name in counts if counts[name] > 1]
    return missing + unknown + twice


def _problems_of_row(row: dict[str, str]) -> list[str]:
    # DictReader stores surplus values under the key None, and None for missing values.
    if None in row:
        return ["more values than columns"]
    if None in row.values():
        return ["fewer values than columns"]
    if any("\0" in value for value in row.values()):
        return ["a NUL character"]
    try:
        Product(**row).full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        return [f"{name}: {one}" for name, texts in error.message_dict.items() for one in texts]
    return []
