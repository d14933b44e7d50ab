"""Pictures from outside, checked and scaled down, and PNG encoding."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image, UnidentifiedImageError

from expound.errors import ExpoundError
from expound.serve.settings import Limits

# Pillow reads dozens of formats; the fewer decoders see foreign bytes, the smaller the attack surface.
FORMATS = ("PNG", "JPEG", "WEBP")


def open_picture(content: bytes, limits: Limits) -> Image.Image:
    """Return the picture in RGB, at most `limits.picture_side` wide and high.

    Raises:
        ExpoundError: the content is no picture of a known format, or has too many pixels.
    """
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as picture:
            # `open` reads only the header. A small file can decode to gigabytes, so the size is checked first.
            if picture.width * picture.height > limits.picture_pixels:
                raise ExpoundError(f"expected a picture of at most {limits.picture_pixels:,} pixels, this one has more")
            decoded = picture.convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        # ExpoundError is a ValueError; the one that is raised above passes unchanged.
        if isinstance(error, ExpoundError):
            raise
        raise ExpoundError(f"expected a picture ({', '.join(FORMATS)})") from None
    decoded.thumbnail((limits.picture_side, limits.picture_side))
    return decoded


def encode_png(picture: Any) -> bytes:
    """Return a PIL image as PNG."""
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="PNG")
    return buffer.getvalue()
