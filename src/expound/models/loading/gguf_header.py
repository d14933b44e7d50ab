"""A check of a GGUF file's header: every count and length in it must fit the size of the file."""

from __future__ import annotations

import struct
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path

TEXT, ARRAY = 8, 9
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each type of number."""
MAX_ARRAY_VALUES = 1 << 22
"""Values of all arrays together; vocabularies of 262,144 tokens have about two million."""
MAX_DIMENSIONS = 4


def check_header(file: Path) -> None:
    """Raise ValueError or struct.error for a header that is cut short, or that promises more than the file has.

    The package gguf believes all counts: a file of 94 bytes can make it loop over an array of 2³³ values.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # noqa: PLC0415  # an extra

    with file.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
        header = _Header(data)
        header.skip(4)
        # A version whose lower half is zero was written in the other byte order.
        if header.read_number("I") & 0xFFFF == 0:
            header.order = ">"
        n_tensors, n_fields = header.read_number("Q"), header.read_number("Q")
        for _ in range(n_fields):
            header.skip_text()
            header.skip_value(header.read_number("I"))
        for _ in range(n_tensors):
            header.skip_text()
            n_dimensions = header.read_number("I")
            if n_dimensions > MAX_DIMENSIONS:
                raise ValueError(f"a tensor has {n_dimensions} dimensions")
            shape = [header.read_number("Q") for _ in range(n_dimensions)]
            block, width = GGML_QUANT_SIZES[GGMLQuantizationType(header.read_number("I"))]
            if header.read_number("Q") + prod(shape) * width // block > len(data):
                raise ValueError(f"a tensor of the shape {shape} does not fit into {len(data)} bytes")


class _Header:
    """A position in the bytes of a file, which moves as values are read and never leaves the file."""

    def __init__(self, data: mmap) -> None:
        self.data, self.order, self.position, self.array_values = data, "<", 0, 0

    def read_number(self, form: str) -> int:
        """Return the next number; `form`: its character in the module struct."""
        (number,) = struct.unpack_from(self.order + form, self.data, self.position)
        self.position += struct.calcsize(form)
        return int(number)

    def skip(self, count: int) -> None:
        """Move on by some bytes. Raises ValueError if the file does not have them."""
        if count > len(self.data) - self.position:
            raise ValueError(f"{count} bytes are expected at byte {self.position} of {len(self.data)}")
        self.position += count

    def skip_text(self) -> None:
        """Move on behind a text."""
        self.skip(self.read_number("Q"))

    def skip_value(self, kind: int) -> None:
        """Move on behind a value of some type."""
        if kind == TEXT:
            self.skip_text()
        elif kind == ARRAY:
            self._skip_array()
        elif kind in WIDTHS:
            self.skip(WIDTHS[kind])
        else:
            raise ValueError(f"there is no type {kind} of values")

    def _skip_array(self) -> None:
        kind, count = self.read_number("I"), self.read_number("Q")
        self.array_values += count
        if kind == ARRAY or self.array_values > MAX_ARRAY_VALUES:
            raise ValueError(f"an array of {count} values, or of arrays")
        if kind != TEXT:
            self.skip(count * WIDTHS.get(kind, 1))
            return
        for _ in range(count):
            self.skip_text()
