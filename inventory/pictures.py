"""Uploaded pictures: checked, scaled down, and stored without what a camera or program recorded."""

from __future__ import annotations

import re
import secrets
import struct
from io import BytesIO
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage
from django.core.files.uploadedfile import UploadedFile
from django.templatetags.static import static
from django.utils.translation import gettext_lazy as _
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP")
MAX_BYTES = 8_000_000
MAX_PIXELS = 25_000_000
"""A decoded pixel takes up to four bytes."""
SIDE = 1000
"""Pixels of the longer side as stored: twice those of the largest picture on a page."""
QUALITY = 82
EXIF = ("exif", "Raw profile type exif")
"""Where Pillow stores what a camera recorded."""
UPLOADED = re.compile(r"products/[0-9a-f]{16}\.webp")


class Storage(FileSystemStorage):
    """Pictures that staff have uploaded, and those of the demo, which are below static/."""

    def url(self, name: str | None) -> str:
        """Return the address of a picture."""
        return super().url(name) if UPLOADED.fullmatch(str(name)) else static(str(name))


def new_name(product: object, name: str) -> str:
    """Return a path for a picture, not that of the upload; what it names never changes."""
    return f"products/{secrets.token_hex(8)}.webp"


class PictureField(forms.FileField):
    """An upload that becomes a WebP picture of at most SIDE pixels."""

    def clean(self, data: Any, initial: Any = None) -> Any:
        """Return the new picture, the present one, or False to remove it."""
        file = super().clean(data, initial)
        return encode(file) if isinstance(file, UploadedFile) else file

    def widget_attrs(self, widget: forms.Widget) -> dict[str, str]:
        """Let browsers offer only what is accepted."""
        return {"accept": ",".join(f"image/{name.lower()}" for name in FORMATS)}


def encode(file: UploadedFile) -> ContentFile[bytes]:
    """Return the picture as WebP. Raise ValidationError if it is too large or not a picture."""
    if (file.size or 0) > MAX_BYTES:
        raise ValidationError(
            _("The file is larger than %(limit)s MB."), "bytes", {"limit": MAX_BYTES // 10**6}
        )
    try:
        with Image.open(file, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:  # nothing is decoded yet
                raise Image.DecompressionBombError
            opened.draft("RGB", (SIDE, SIDE))
            opened.load()
            opened.getexif()  # kept, so that the orientation is known without its source
            for source in EXIF:  # Pillow would encode it again, and fail if it is damaged
                opened.info.pop(source, None)
            upright = ImageOps.exif_transpose(opened)
            picture = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        limit = {"limit": MAX_PIXELS // 10**6}
        raise ValidationError(
            _("The picture has more than %(limit)s million pixels."), "pixels", limit
        ) from None
    except (OSError, SyntaxError, ValueError, struct.error):  # each decoder has errors of its own
        raise ValidationError(
            _("The file is not a JPEG, PNG or WebP picture, or it is damaged."), "invalid_image"
        ) from None
    picture.thumbnail((SIDE, SIDE))
    picture.info.clear()  # such as comments and the colour profile, which the encoder would keep
    encoded = BytesIO()
    picture.save(encoded, "WEBP", quality=QUALITY)
    return ContentFile(encoded.getvalue(), "picture.webp")
