"""Pictures of products: the admin refuses bad ones, pages show the others."""

import struct
import zlib
from io import BytesIO
from pathlib import Path

import pytest
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from PIL import ExifTags, Image

from inventory.models import Product
from shop.platform import shared_pages
from tests.shop.conftest import amy, in_force
from tests.shop.making import a_sale

__all__ = ["amy", "in_force"]
pytestmark = pytest.mark.django_db


def test_pictures_of_the_demo_are_static_files(in_force, client):
    sale = a_sale()
    for picture, count in (("", 0), ("products/kettle.svg", 1)):
        Product.objects.update(photo=picture)
        cache.clear()
        shared_pages.clear()
        for path in ("/", "/products/", f"/products/{sale.product.slug}/", f"/sales/{sale.slug}/"):
            shown = client.get(path).text.count('<img class="picture" src="/static/products/kettle')
            assert shown == count, path


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


def upload(amy: Client, content: bytes, name: str = "kettle.jpg"):
    photo = SimpleUploadedFile(name, content, "image/jpeg")
    return amy.post(ADD, {**PRODUCT, "is_listed": "on", "photo": photo})


@pytest.fixture
def media(tmp_path, settings) -> Path:
    settings.MEDIA_ROOT = str(tmp_path / "media")
    return tmp_path / "media"


ADD = "/admin/inventory/product/add/"
PRODUCT = {"slug": "kettle", "name": "Kettle", "price": "20"}
BOMB = encoded("PNG")[:16] + struct.pack(">II", 6000, 6000) + encoded("PNG")[24:]
BOMB = BOMB[:29] + struct.pack(">I", zlib.crc32(BOMB[12:29])) + BOMB[33:]
"""A file of 100 bytes that claims to have 36 million pixels."""
NOT_ACCEPTED = {
    "text": (b"not a picture", "not a JPEG"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', "not a"),
    "GIF": (encoded("GIF"), "not a JPEG"),
    "empty": (b"", "empty"),
    "damaged": (encoded("JPEG", (400, 400), quality=95)[:1500], "damaged"),
    "cut EXIF": (encoded("PNG", exif=b"Exif\0\0II*\0"), "damaged"),
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
    url = Product.objects.get().photo.url
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


def test_photo_is_replaced_and_removed(amy, media, django_capture_on_commit_callbacks):
    upload(amy, encoded("JPEG"))
    product = Product.objects.get()
    change = f"/admin/inventory/product/{product.pk}/change/"
    first = product.photo.name
    assert f'class="preview" src="{product.photo.url}"' in amy.get(change).text
    with django_capture_on_commit_callbacks(execute=True):
        photo = SimpleUploadedFile("b.png", encoded("PNG"), "image/png")
        amy.post(change, {**PRODUCT, "photo": photo})
    product.refresh_from_db()
    assert product.photo.name != first
    assert [file.name for file in media.rglob("*.webp")] == [Path(product.photo.name).name]
    with django_capture_on_commit_callbacks(execute=True):
        amy.post(change, {**PRODUCT, "photo-clear": "on"})
    assert not Product.objects.get().photo
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
