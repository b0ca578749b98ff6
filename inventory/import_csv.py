"""Import of products from a CSV file: all rows or none."""

import csv
from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.db import transaction

from inventory.models import Product

REQUIRED = ("slug", "name", "price")
OPTIONAL = ("name_zh", "description", "description_zh", "picture", "is_listed")


class ImportRefused(Exception):
    """The file is invalid; `problems` holds one line of text for each fault."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def import_products(lines: Iterable[str]) -> int:
    """Create or update (by slug) the products of a CSV file; return their number.

    Columns that the file does not have keep their values. Raise ImportRefused without changing
    anything if a row is invalid.
    """
    products = _read(lines)
    with transaction.atomic():
        for slug, values in products.items():
            Product.objects.update_or_create(slug=slug, defaults=values)
    return len(products)


def _read(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    products: dict[str, dict[str, str]] = {}
    first_seen: dict[str, int] = {}
    problems: list[str] = []
    rows = csv.DictReader(lines, strict=True)
    try:
        problems += _problems_of_header(list(rows.fieldnames or ()))
        if problems:
            raise ImportRefused(problems)
        for row in rows:
            line, slug = rows.line_num, row.get("slug") or ""
            found = _problems_of_row(row)
            name = slug.casefold()  # MariaDB treats spellings that differ in case as one slug
            if name in first_seen:
                found.append(f"slug: {slug!r} was used in line {first_seen[name]} already")
            problems += [f"line {line}: {problem}" for problem in found]
            first_seen.setdefault(name, line)
            products[slug] = {name: value for name, value in row.items() if name != "slug"}
    except csv.Error as error:
        problems.append(f"line {rows.reader.line_num}: {error}")
    except UnicodeDecodeError:
        problems.append(f"line {rows.line_num + 1} or below: not UTF-8")
    if not products and not problems:
        problems.append("line 2: no product found")
    if problems:
        raise ImportRefused(problems)
    return products


def _problems_of_header(names: list[str]) -> list[str]:
    problems = [f"line 1: column {name!r} is missing" for name in REQUIRED if name not in names]
    for name in dict.fromkeys(names):
        if name not in REQUIRED + OPTIONAL:
            problems.append(f"line 1: column {name!r} is unknown")
        if names.count(name) > 1:
            problems.append(f"line 1: column {name!r} comes twice")
    return problems


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
        return [
            f"{name}: {message}"
            for name, messages in error.message_dict.items()
            for message in messages
        ]
    return []
