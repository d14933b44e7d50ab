"""Uploaded pictures, checked and scaled down, and PNG encoding."""

from __future__ import annotations

from hashlib import sha256
from io import BytesIO
from typing import Any

from PIL import Image, UnidentifiedImageError

from exegete.errors import ExegeteError
from exegete.web.recent import RecentItems
from exegete.web.settings import Limits

# Pillow reads dozens of formats; the fewer decoders see foreign bytes, the smaller the attack surface.
FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PICTURES = 64


class PictureStore:
    """The last uploaded pictures, kept in memory and found by a digest of their content."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._pictures = RecentItems[str, bytes](MAX_PICTURES)

    def add(self, content: bytes) -> str:
        """Store a picture and return its digest. Raises ExegeteError if it cannot be read or is too large."""
        picture = encode_png(open_picture(content, self.limits))
        # Of the re-encoded pixels: metadata of the upload is dropped, and equal pictures are stored once.
        digest = sha256(picture).hexdigest()[:32]
        self._pictures.add(digest, picture)
        return digest

    def get(self, digest: str) -> bytes:
        """Return a picture as PNG. Raises ExegeteError if it is no longer stored."""
        picture = self._pictures.get(digest)
        if picture is None:
            raise ExegeteError(f"this picture is no longer stored (the last {MAX_PICTURES} are): upload it again")
        return picture


def open_picture(content: bytes, limits: Limits) -> Image.Image:
    """Return the picture in RGB, at most `limits.picture_side` wide and high.

    Raises:
        ExegeteError: the content is no picture of a known format, or has too many pixels.
    """
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as picture:
            # `open` reads only the header. A small file can decode to gigabytes, so the size is checked first.
            if picture.width * picture.height > limits.picture_pixels:
                raise ExegeteError(f"expected a picture of at most {limits.picture_pixels:,} pixels, this one has more")
            decoded = picture.convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        # ExegeteError is a ValueError; the one that is raised above passes unchanged.
        if isinstance(error, ExegeteError):
            raise
        raise ExegeteError(f"expected a picture ({', '.join(FORMATS)})") from None
    decoded.thumbnail((limits.picture_side, limits.picture_side))
    return decoded


def encode_png(picture: Any) -> bytes:
    """Return a PIL image as PNG."""
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="PNG")
    return buffer.getvalue()
