"""`exegete explain --task generation`: which parts of the prompt made the model say this?"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.models import ExplainedModel
    from exegete.models.generation.model import GeneratingModel


def example_of(
    text: str | None, prompt: Path | None, messages: Path | None, sources: Sequence[str], response: str | None
) -> dict[str, Any]:
    """The example that the options describe.

    Raises:
        ExegeteError: not one of text, prompt and messages, a file that cannot be read, no JSON.
    """
    given = [value for value in (text, prompt, messages) if value is not None]
    if len(given) != 1:
        raise ExegeteError("give one of a text, --prompt FILE and --messages FILE")
    row: dict[str, Any] = {"prompt": text} if text is not None else {}
    if prompt is not None:
        row = {"prompt": _read("--prompt", prompt).rstrip("\n")}
    if messages is not None:
        try:
            found = json.loads(_read("--messages", messages))
        except json.JSONDecodeError as error:
            raise ExegeteError(f"--messages: {messages} is no JSON: {error}") from error
        row = found if isinstance(found, dict) else {"messages": found}
    if sources:
        row["sources"] = _sources(sources)
    return row if response is None else row | {"response": response}


def unit_of(example: dict[str, Any]) -> str:
    """The units where none are asked for: sources, where there are some."""
    return "source" if example.get("sources") else "sentence"


def target_of(text: str) -> Any:
    """Rows by name (sentences, unless something else is asked for), or spans as 0:4,7:9."""
    if text == "predicted":
        return "sentences"
    parts = [re.fullmatch(r"(\d{1,9}):(\d{1,9})", part) for part in text.split(",")]
    return [(int(part[1]), int(part[2])) for part in parts if part] if all(parts) else text


def plans(
    model: str, example: dict[str, Any], ids: Sequence[str], target: Any, unit: Any, max_new_tokens: int,
    dtype: str | None, max_length: int | None, *, attribute_target: bool,
) -> list[str]:  # fmt: skip
    """A line for each method: lengths, units, rows and passes; and what a pass keeps. No weights are read."""
    from exegete.explainers.generated import resolve_unit
    from exegete.explainers.plan import plan_work
    from exegete.models.loading.without_weights import count_saved_bytes, load_without_weights

    planned = load_without_weights(model, dtype, max_length)
    chosen = [resolve_unit(method, unit, {}) for method in ids]
    found = [
        plan_work(planned, example, one, target, size, max_new_tokens, attribute_target=attribute_target)
        for one, size in chosen
    ]
    lines = [str(each) for each in found]
    if any(each.backward for each in found):
        kept = count_saved_bytes(planned, found[0].prompt_tokens, found[0].response_tokens)
        known = "an unknown amount" if kept is None else f"{kept / 2**20:.0f} MiB"
        lines.append(f"a forward pass that is gone back through keeps {known} beside the weights")
    return lines


def answered(
    model: ExplainedModel, example: dict[str, Any], max_new_tokens: int, temperature: float, seed: int
) -> dict[str, Any]:
    """The example with a response."""
    (found,) = _generating(model).respond([example], max_new_tokens, temperature, seed)
    return found


def _generating(model: ExplainedModel) -> GeneratingModel:
    from exegete.models.generation.model import GeneratingModel

    assert isinstance(model, GeneratingModel)
    return model


def _sources(given: Sequence[str]) -> dict[str, str]:
    """Texts by name, from FILE (its name without ending) or NAME=FILE."""
    found: dict[str, str] = {}
    for one in given:
        named, _, path = one.rpartition("=")
        file = Path(path)
        name = named or file.stem
        if name in found:
            raise ExegeteError(f"--source: two are called {name!r}: write NAME=FILE")
        found[name] = _read("--source", file)
    return found


def _read(option: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExegeteError(f"{option}: {file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
