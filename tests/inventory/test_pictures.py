"""Pictures of products: the admin refuses bad ones, the pages survive them."""

import struct
import zlib
from io import BytesIO
from pathlib import Path

import pytest
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from PIL import ExifTags, Image

from inventory.models import Product, validate_picture
from shop.platform import shared_pages
from tests.shop.conftest import amy, in_force
from tests.shop.making import a_sale

__all__ = ["amy", "in_force"]
pytestmark = pytest.mark.django_db

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
STORED = [*HOSTILE, f" {GOOD}", f"{GOOD}\n", "a\0b.svg", "x" * 120]
WELL_FORMED = ("products/none.svg", "products/kettle.svg/x.svg")
FOREIGN = "//evil.example/x.svg"


def product_form(picture: str) -> dict[str, str]:
    return {"slug": "kettle", "name": "Kettle", "price": "20", "picture": picture}


def test_only_the_path_of_a_picture_is_accepted():
    """What the database has all the same names no other file or host."""
    validate_picture(GOOD)
    for picture in STORED:
        with pytest.raises(ValidationError):
            validate_picture(picture)
        assert bool(Product(picture=picture).picture_url) == (picture in WELL_FORMED), picture


def test_admin_refuses_a_bad_picture(amy):
    page = amy.post("/admin/inventory/product/add/", product_form(FOREIGN))
    assert page.context["adminform"].form.errors.keys() == {"picture"}
    assert not Product.objects.exists()
    assert amy.post("/admin/inventory/product/add/", product_form(f" {GOOD} ")).status_code == 302
    assert Product.objects.get().picture == GOOD


@pytest.mark.parametrize("picture", [FOREIGN, *WELL_FORMED])
def test_pages_survive_a_bad_picture_in_the_database(picture, in_force, client):
    sale = a_sale()
    Product.objects.update(picture=picture)
    for path in ("/", "/products/", f"/products/{sale.product.slug}/", f"/sales/{sale.slug}/"):
        page = client.get(path)
        assert page.status_code == 200, path
        assert ('<img class="picture"' in page.text) == (picture in WELL_FORMED), path


def encoded(kind: str, size: tuple[int, int] = (40, 20), mode: str = "RGB", **options) -> bytes:
    """Return a picture: white, with a red left half."""
    picture = Image.new(mode, size, "white")
    picture.paste("red", (0, 0, size[0] // 2, size[1]))
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def exif() -> Image.Exif:
    """Return what a camera records: turned by 90 degrees, and the place."""
    recorded = Image.Exif()
    recorded[ExifTags.Base.Orientation], recorded[ExifTags.Base.Make] = 6, "Camera"
    recorded.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (31.0, 14.0, 0.0)
    return recorded


def with_damaged_data() -> bytes:
    """Return a turned JPEG with a text for its height: only to read that again is possible."""
    name, height = (tag.to_bytes(2) for tag in (ExifTags.Base.Make, ExifTags.Base.ImageLength))
    good = encoded("JPEG", exif=exif())
    assert good.count(name + b"\x00\x02") == 1
    return good.replace(name + b"\x00\x02", height + b"\x00\x02")


def upload(amy: Client, content: bytes, name: str = "kettle.jpg", **form: str):
    photo = SimpleUploadedFile(name, content, "image/jpeg")
    return amy.post(ADD, {**product_form(""), "is_listed": "on", "photo": photo, **form})


@pytest.fixture
def media(tmp_path, settings) -> Path:
    settings.MEDIA_ROOT = str(tmp_path / "media")
    return tmp_path / "media"


ADD = "/admin/inventory/product/add/"
BOMB = encoded("PNG")[:16] + struct.pack(">II", 6000, 6000) + encoded("PNG")[24:]
BOMB = BOMB[:29] + struct.pack(">I", zlib.crc32(BOMB[12:29])) + BOMB[33:]
"""A file of 100 bytes that claims to have 36 million pixels."""
NOT_ACCEPTED = {
    "text": (b"not a picture", "not a JPEG"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', "not a"),
    "GIF": (encoded("GIF"), "not a JPEG"),
    "empty": (b"", "empty"),
    "damaged": (encoded("JPEG", (400, 400), quality=95)[:1500], "damaged"),
    "too many pixels": (BOMB, "25 million pixels"),
    "too large": (encoded("PNG") + bytes(8_000_000), "8 MB"),
}


@pytest.mark.parametrize("name", NOT_ACCEPTED)
def test_upload_of_a_bad_photo_is_refused(name, amy, media):
    content, problem = NOT_ACCEPTED[name]
    page = upload(amy, content)
    assert problem in page.context["adminform"].form.errors["photo"][0]
    assert not Product.objects.exists()
    assert not media.exists()


@pytest.mark.parametrize(
    ("content", "size", "mode"),
    [
        (encoded("JPEG", exif=exif(), comment=b"of a camera"), (20, 40), "RGB"),
        (with_damaged_data(), (20, 40), "RGB"),
        (encoded("PNG", (3000, 1500), "RGBA"), (1000, 500), "RGB"),
        (encoded("PNG", mode="LA", size=(10, 10)), (10, 10), "RGB"),
        (encoded("WEBP", xmp=b"<x:xmpmeta/>"), (40, 20), "RGB"),
        (encoded("JPEG", (60, 60), "CMYK"), (60, 60), "RGB"),
    ],
    ids=["turned, with a place", "damaged data", "large", "grey", "WebP", "print colours"],
)
def test_photo_is_scaled_turned_and_stripped(content, size, mode, amy, media, client):
    assert upload(amy, content, "../../x.svg").status_code == 302
    url = Product.objects.get().picture_url
    response = client.get(url)
    stored = b"".join(response.streaming_content)
    assert response["Content-Type"] == "image/webp"
    assert response["Cache-Control"] == "public, immutable, max-age=31536000"
    with Image.open(BytesIO(stored)) as picture:
        assert (picture.format, picture.size, picture.mode) == ("WEBP", size, mode)
        assert not picture.getexif()
        assert picture.info.keys() <= {"loop", "background", "timestamp", "duration"}
    assert b"Camera" not in stored
    cache.clear()
    shared_pages.clear()
    assert url in client.get("/products/").text


def test_photo_replaces_the_catalogues_picture_until_it_is_removed(
    amy, media, django_capture_on_commit_callbacks
):
    upload(amy, encoded("JPEG"), picture=GOOD)
    product = Product.objects.get()
    change = f"/admin/inventory/product/{product.pk}/change/"
    first = product.photo.name
    with django_capture_on_commit_callbacks(execute=True):
        photo = SimpleUploadedFile("b.png", encoded("PNG"), "image/png")
        amy.post(change, {**product_form(GOOD), "photo": photo})
    product.refresh_from_db()
    assert product.photo.name != first
    assert [file.name for file in media.rglob("*.webp")] == [Path(product.photo.name).name]
    with django_capture_on_commit_callbacks(execute=True):
        amy.post(change, {**product_form(GOOD), "photo-clear": "on"})
    assert Product.objects.get().picture_url == f"/static/{GOOD}"
    assert not list(media.rglob("*.webp"))


@pytest.mark.parametrize("how", ["1/delete/", ""], ids=["page", "list"])
def test_photo_of_a_deleted_product_is_deleted(how, amy, media, django_capture_on_commit_callbacks):
    upload(amy, encoded("JPEG"))
    pk = str(Product.objects.get().pk)
    form = {"post": "yes", "action": "delete_selected", "_selected_action": pk}
    assert list(media.rglob("*.webp"))
    with django_capture_on_commit_callbacks(execute=True):
        amy.post(f"/admin/inventory/product/{how.replace('1', pk)}", form)
    assert not Product.objects.exists()
    assert not list(media.rglob("*.webp"))


@pytest.mark.parametrize("name", ["0123456789abcdef.webp", "../shop.sqlite3", "%2e%2e/x.webp"])
def test_other_files_are_not_served(name, media, client):
    assert client.get(f"/media/products/{name}").status_code == 404
