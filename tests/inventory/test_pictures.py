"""Names of product pictures: the admin and the import refuse bad ones, the pages survive them."""

from pathlib import Path

import pytest
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from inventory.models import Product
from shop.models import User
from tests.shop.making import a_sale, put_in_force, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

GOOD = "products/kettle.svg"
HOSTILE = [
    *("/", "/x.svg", "//evil.example/x.svg", "///x.svg", "/static/products/kettle.svg"),
    *("http://evil.example/x.svg", "https:x.svg", "javascript:alert(1)", "data:image/svg+xml,x"),
    *("http://[", "//[", "[", "C:\\x.svg", "\\x.svg", "products\\kettle.svg", "\\\\evil\\x.svg"),
    *("..", "../x.svg", "../../etc/passwd", "products/../products/kettle.svg", "products/.."),
    *(".", "./products/kettle.svg", "products//kettle.svg", "products/", "products", "~/x.svg"),
    *("-x.svg", "products/-x.svg", ".x.svg", "products/.svg", "%2e%2e/x.svg", "a\x07b.svg"),
    *("products/kettle.svg?x=1", "products/kettle.svg#x", "products/kettle.svg/", "\u202ex.svg"),
    *("products/none.svg", "css/shop.css", "products/kettle.svg/x.svg", "<script>.svg", "水壶.svg"),
]
"""Not even the form's removal of surrounding space makes one of them a picture."""
STORED = [*HOSTILE, f" {GOOD}", f"{GOOD}\n", "a\0b.svg", "x" * 120]
WELL_FORMED = ("products/none.svg", "products/kettle.svg/x.svg")


@pytest.fixture
def amy() -> Client:
    return signed_in(User.objects.create_superuser("amy"))


def product_form(picture: str) -> dict[str, str]:
    return {"slug": "kettle", "name": "Kettle", "price": "20", "picture": picture}


@pytest.mark.parametrize("picture", HOSTILE)
def test_admin_refuses_a_bad_picture(picture, amy):
    page = amy.post("/admin/inventory/product/add/", product_form(picture))
    assert page.status_code == 200
    assert page.context["adminform"].form.errors.keys() == {"picture"}
    assert not Product.objects.exists()


@pytest.mark.parametrize("picture", ["", GOOD, f" {GOOD} "])
def test_admin_accepts_a_picture(picture, amy):
    assert amy.post("/admin/inventory/product/add/", product_form(picture)).status_code == 302
    assert Product.objects.get().picture == picture.strip()


@pytest.mark.parametrize("picture", STORED)
def test_import_refuses_a_bad_picture(picture, tmp_path: Path):
    file = tmp_path / "products.csv"
    file.write_text(f'slug,name,price,picture\ncup,Cup,3,{GOOD}\nkettle,Kettle,3,"{picture}"\n')
    with pytest.raises(CommandError, match=r"line [34]: (picture: |a NUL)"):
        call_command("import_products", str(file))
    assert not Product.objects.exists()


@pytest.mark.parametrize(
    "picture", [one for one in STORED if "\0" not in one or connection.vendor != "postgresql"]
)
def test_pages_survive_a_bad_picture_in_the_database(picture, client):
    put_in_force("process")
    cache.clear()
    sale = a_sale()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE inventory_product SET picture = %s", [picture])
    for path in ("/", "/products/", f"/products/{sale.product.slug}/", f"/sales/{sale.slug}/"):
        page = client.get(path)
        assert page.status_code == 200, path
        assert '<img class="picture"' not in page.text or picture in WELL_FORMED, path
        assert 'class="picture"' in page.text
