"""Pictures that come in are checked and made small; those that go out are PNG."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from io import BytesIO
from threading import Lock
from typing import Any

from PIL import Image, UnidentifiedImageError

from exegete.errors import ExegeteError
from exegete.web.settings import Limits

FORMATS = ("PNG", "JPEG", "WEBP")
KEPT = 64


class PictureStore:
    """The last pictures that were uploaded, in memory, by a digest of what they show."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def add(self, content: bytes) -> str:
        """Keeps a picture and gives its digest. Raises ExegeteError for what is none, or is too large."""
        picture = encode_png(open_picture(content, self.limits))
        digest = sha256(picture).hexdigest()[:32]
        with self._lock:
            self._kept[digest] = picture
            self._kept.move_to_end(digest)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return digest

    def get(self, digest: str) -> bytes:
        """A PNG. Raises ExegeteError when it is not kept any more."""
        with self._lock:
            if digest not in self._kept:
                raise ExegeteError(f"the picture is not here any more (the last {KEPT} are kept): upload it again")
            return self._kept[digest]


def open_picture(content: bytes, limits: Limits) -> Image.Image:
    """The picture, at most `limits.picture_side` wide and high; its size is read before decoding."""
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > limits.picture_pixels:
                raise ExegeteError(f"a picture may have {limits.picture_pixels:,} pixels, this one is larger")
            found = picture.convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        if isinstance(error, ExegeteError):
            raise
        raise ExegeteError(f"expected a picture ({', '.join(FORMATS)})") from None
    found.thumbnail((limits.picture_side, limits.picture_side))
    return found


def encode_png(picture: Any) -> bytes:
    """A PIL image as a PNG."""
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="PNG")
    return buffer.getvalue()
