"""`manage.py import_products`: all rows or none, each fault with its line."""

from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from inventory.models import Product

pytestmark = pytest.mark.django_db

GOOD = "slug,name,price\nkettle,Kettle,20\n"
PICTURES = "slug,name,price,picture\ncup,Cup,3,products/kettle.svg\n"


def run(file: Path, content: str | bytes) -> str:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    out = StringIO()
    call_command("import_products", str(file), stdout=out)
    return out.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "products.csv"


def test_creates_and_updates(file):
    Product.objects.create(slug="kettle", name="Old", name_zh="壶", price=1)
    text = (
        '\ufeffslug,name,price,description\r\nkettle,Kettle,20.50,"two\r\nlines"\r\ncup,杯子,3,\r\n'
    )
    assert "2 products" in run(file, text)
    kettle = Product.objects.get(slug="kettle")
    assert (kettle.name, kettle.price) == ("Kettle", Decimal("20.50"))
    assert kettle.name_zh == "壶", "a column that the file does not have keeps its value"
    assert Product.objects.get(slug="cup").name == "杯子"


FAULTS = {
    "empty": ("", "line 1: column 'slug' is missing"),
    "no rows": ("slug,name,price\n", "no product"),
    "column missing": ("slug,name\nk,K\n", "line 1: column 'price' is missing"),
    "column unknown": ("slug,name,price,colour\nk,K,1,red\n", "line 1: column 'colour' is unknown"),
    "column twice": ("slug,name,price,price\nk,K,1,2\n", "line 1: column 'price' comes twice"),
    "no slug": (GOOD + ",Cup,3\n", "line 3: slug"),
    "bad slug": (GOOD + "a b,Cup,3\n", "line 3: slug"),
    "no name": (GOOD + "cup,,3\n", "line 3: name"),
    "name too long": (GOOD + f"cup,{'x' * 121},3\n", "line 3: name"),
    "no price": (GOOD + "cup,Cup,\n", "line 3: price"),
    "negative": (GOOD + "cup,Cup,-1\n", "line 3: price"),
    "free": (GOOD + "cup,Cup,0\n", "line 3: price"),
    "not a number": (GOOD + "cup,Cup,NaN\n", "line 3: price"),
    "too many digits": (GOOD + "cup,Cup,1.234\n", "line 3: price"),
    "slug twice": (GOOD + "kettle,Again,3\n", "line 3: slug: 'kettle' was used before"),
    "slug in capitals": (GOOD + "KETTLE,Again,3\n", "line 3: slug: 'KETTLE' was used before"),
    "too few values": (GOOD + "cup,Cup\n", "line 3: fewer values"),
    "too many values": (GOOD + "cup,Cup,3,4\n", "line 3: more values"),
    "NUL": (GOOD + "cup,C\0p,3\n", "line 3"),
    "open quote": (GOOD + 'cup,"Cup,3\n', "line 3"),
    "field without end": (GOOD + "cup," + "x" * 200_000 + ",3\n", "line 3: field larger"),
    "bad UTF-8": (GOOD.encode() + b"cup,\xff,3\n", "not UTF-8"),
    "foreign picture": (PICTURES + "kettle,Kettle,3,//evil.example/x.svg\n", "line 3: picture: "),
    "two faults": (GOOD + "cup,,3\ncan,Can,x\n", "line 4: price"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_file_with_a_fault_is_refused(file, fault):
    content, message = FAULTS[fault]
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("import_products", str(file))  # it is not there yet
    with pytest.raises(CommandError, match="nothing was imported") as refused:
        run(file, content)
    assert message in str(refused.value)
    assert not Product.objects.exists()
