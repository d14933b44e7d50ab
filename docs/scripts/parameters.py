"""Tables of the parameters of methods and metrics: name, default, and the text from the docstrings of their classes."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from html import escape
from typing import Any, get_type_hints

ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
"""An entry of `Args:`, indented by four, with its continuation lines."""
NAMED = re.compile(r"(?:(?<=[.;?)] )|^)((?:`\w+`(?:, | and )?)+): ")
"""The beginning of a sentence that describes one or several parameters: `name`: …"""


def table(part: type) -> str:
    """Return a Markdown table of the parameters, or an empty string. Raises ValueError if a parameter has no text."""
    rows = [f"| `{name}` | `{default}` | {text} |" for name, default, text in parameter_rows(part)]
    return "\n".join(["| parameter | default | |", "| --- | --- | --- |", *rows]) if rows else ""


def signature_table(function: Callable[..., Any]) -> str:
    """Return a Markdown table of a recipe's parameters, whose texts are in the annotations; empty without any."""
    hints = get_type_hints(function, include_extras=True)
    rows = ["| parameter | default | |", "| --- | --- | --- |"]
    for name, parameter in inspect.signature(function).parameters.items():
        text = escape(getattr(hints[name], "__metadata__", ("",))[0], quote=False).replace("|", "\\|")
        default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
        rows.append(f"| `{name}` | `{format_default(default)}` | {text} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def parameter_rows(part: type) -> Iterator[tuple[str, str, str]]:
    """Yield the name, default and text of each parameter. Raises ValueError if no docstring has its text."""
    fields = [field for field in dataclasses.fields(part) if field.init] if dataclasses.is_dataclass(part) else []
    texts = [texts_of(inspect.cleandoc(vars(each).get("__doc__") or "")) for each in part.__mro__]
    for field in fields:
        text = next((own[field.name] for own in texts if not own.get(field.name, "see").startswith("see")), None)
        if text is None:
            raise ValueError(f"no docstring of {part.__qualname__} describes its parameter {field.name}")
        yield field.name, format_default(field.default), escape(text, quote=False).replace("|", "\\|")


def texts_of(docstring: str) -> dict[str, str]:
    """Return a docstring's texts on parameters: entries of `Args:`, and sentences that begin with `name`: ."""
    texts = {name: " ".join(text.split()) for name, text in ARGUMENT.findall(docstring)}
    for paragraph in docstring.partition("\nArgs:")[0].split("\n\n"):
        _, *parts = NAMED.split(" ".join(paragraph.split()))
        for names, text in zip(parts[::2], parts[1::2], strict=True):
            texts |= dict.fromkeys(re.findall(r"\w+", names.replace(" and ", " ")), text.strip())
    return texts


def format_default(default: Any) -> str:
    """Return a default as it is written in a spec, such as `0.01,0.05` for a tuple."""
    if default is dataclasses.MISSING:
        return "required"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
