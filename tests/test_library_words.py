"""The library knows nothing about the shop that uses it, nor about what its locks guard."""

import re
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[1] / "locking"
TEXTS = [*LIBRARY.rglob("*.py"), *LIBRARY.rglob("*.html"), *LIBRARY.rglob("*.po")]
TEXTS += [*LIBRARY.rglob("*.lua"), *LIBRARY.rglob("*.md")]
SHOP_WORDS = re.compile(
    r"(?<![a-z])(sales?|stocks?|order[ _]numbers?|buyers?|purchas\w+|inventory|shops?|customers?"
    r"|overs(?:ell|old)\w*|naive writes?|write strateg\w+)(?![a-z])"
    r"|[售买购]|库存|订单|下单|秒杀|商品",
    re.IGNORECASE,
)
ALLOWED = {
    # Applied migrations keep the name that the field had; they are not rewritten.
    ("migrations/0001_initial.py", "write strategy"),
}


def shop_words(text: str) -> set[str]:
    return {found.group().lower() for found in SHOP_WORDS.finditer(text)}


def test_library_does_not_mention_the_shop() -> None:
    assert {file.suffix for file in TEXTS} >= {".py", ".html", ".po", ".lua"}
    found = {
        (str(file.relative_to(LIBRARY)), word)
        for file in TEXTS
        for word in shop_words(file.read_text("utf-8"))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("from shop import Sale", {"shop", "sale"}),
        ('lock("sale:42")', {"sale"}),
        ("read_stock(order_number)", {"stock", "order_number"}),
        ("Buyers purchased it; inventory", {"buyers", "purchased", "inventory"}),
        ("现有库存", {"库存"}),
        ("in order of arrival, wholesale, stockings, shopping", set()),
    ],
)
def test_shop_words_are_recognised(text: str, words: set[str]) -> None:
    assert shop_words(text) == words
