"""The parameters of methods and metrics as tables: name, default, and what the docstrings of their classes say."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from html import escape
from typing import Any

ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
"""An entry of `Args:`, indented by four, with the lines that go on."""
NAMED = re.compile(r"(?:(?<=[.;?)] )|^)((?:`\w+`(?:, | and )?)+): ")
"""Where a sentence begins that tells of one parameter or of several: `name`: …"""


def table(part: type) -> str:
    """Markdown: a row for each parameter; empty for a part without any. Raises ValueError where one has no text."""
    rows = [f"| `{name}` | `{default}` | {text} |" for name, default, text in told(part)]
    return "\n".join(["| parameter | default | |", "| --- | --- | --- |", *rows]) if rows else ""


def told(part: type) -> Iterator[tuple[str, str, str]]:
    """Each parameter's name, default and text. Raises ValueError where no docstring of its classes has a text."""
    fields = [field for field in dataclasses.fields(part) if field.init] if dataclasses.is_dataclass(part) else []
    texts = [texts_of(inspect.cleandoc(vars(each).get("__doc__") or "")) for each in part.__mro__]
    for field in fields:
        text = next((own[field.name] for own in texts if not own.get(field.name, "see").startswith("see")), None)
        if text is None:
            raise ValueError(f"no docstring of {part.__qualname__} tells of its parameter {field.name}")
        yield field.name, shown(field.default), escape(text, quote=False).replace("|", "\\|")


def texts_of(docstring: str) -> dict[str, str]:
    """What a docstring says of parameters: the entries of its `Args:`, and sentences that begin with `name`: ."""
    found = {name: " ".join(text.split()) for name, text in ARGUMENT.findall(docstring)}
    for paragraph in docstring.partition("\nArgs:")[0].split("\n\n"):
        _, *parts = NAMED.split(" ".join(paragraph.split()))
        for names, text in zip(parts[::2], parts[1::2], strict=True):
            found |= dict.fromkeys(re.findall(r"\w+", names.replace(" and ", " ")), text.strip())
    return found


def shown(default: Any) -> str:
    """A default as a spec has it: `0.01,0.05` of a tuple."""
    if default is dataclasses.MISSING:
        return "required"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
