"""Examples of generated text: a prompt or messages, sources, the response, and the sources that it needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expound.data.readers.base import Rereadable, Row, Table, require_text
from expound.data.readers.columns import Records, find_names
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Dataset

EXCHANGE = (
    *("prompt", "messages", "sources", "response", "evidence", "kind"),
    *("completion", "tools", "chat_template_kwargs"),
)
"""`completion` is the name of the response in TRL; tools and arguments of the chat template are JSON in tables."""


MESSAGE = ("name", "tool_call_id", "tool_calls", "reasoning_content", "reasoning", "thinking")
"""Keys that a message may have besides its role and its content; tool calls are JSON in tables."""
ANSWERS = ("answer", "output", "generated_text", "chosen", "reply", "assistant", "target")
"""Names of columns that probably hold the response."""


def join_text_parts(content: Any) -> Any:
    """Return a message's content, OpenAI's list of parts `{"type": "text", "text": …}` as one text, a line per part.

    The text of a part may also be called `content`, as in AgentDojo. Anything else is returned as it is.
    """
    texts = list[str]()
    for part in content if isinstance(content, list) else ():
        text = part.get("text", part.get("content")) if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            return content
        texts.append(text)
    return "\n".join(texts) if texts else content


def exchange_features() -> dict[str, Any]:
    """Return the types of the columns. `evidence`: names of sources, null if not annotated; `kind`: of the question."""
    from datasets import List, Value

    text = Value("string")
    return dict.fromkeys(EXCHANGE, text) | {
        "messages": List({"role": text, "content": text}),
        "sources": List({"name": text, "text": text}),
        "evidence": List(text),
    }


def are_exchanges(records: Records) -> bool:
    """Return whether records are generated text: they have a prompt or messages, and neither a text nor a label."""
    names = set(find_names(records))
    return bool(names & {"prompt", "messages"}) and not names & {"text", "label"}


def exchange_key(row: Row) -> str:
    """Return the prompt, messages and sources of an example as one text, the key that it is divided by."""
    return json.dumps([row.get(name) for name in EXCHANGE[:3]], ensure_ascii=False)


def make_exchange_table(records: Records) -> Table:
    """Return the records as a table, with the columns that any of them has.

    Raises:
        ExpoundError: a record with neither or both of a prompt and messages, a malformed value, naming the place, or an
            answer in a column of another name.
    """
    from datasets import Features, List, Value

    present, keys = set[str](), set[str]()
    for where, row in records:
        for name, value in row.items():
            if value is not None:
                present.add(name)
        for message in _require_list(row.get("messages"), "messages", where) or ():
            keys.update(key for key in MESSAGE if isinstance(message, dict) and message.get(key))
    types = exchange_features()
    if keys:
        types["messages"] = List({key: Value("string") for key in ("role", "content", *sorted(keys))})
    for name in ANSWERS:
        if name in present and not present & {"response", "completion"}:
            raise ExpoundError(f"the column {name!r} is not read: call it 'response' if it holds the response")
    columns = {name: types[name] for name in EXCHANGE if name in present}
    return Table(Features(columns), Rereadable(partial(_make_rows, records, tuple(columns), sorted(keys))))


def _make_rows(records: Records, names: tuple[str, ...], keys: list[str]) -> Iterator[Row]:
    for where, record in records:
        if (record.get("prompt") is None) == (record.get("messages") is None):
            raise ExpoundError(f"{where}: expected either 'prompt' or 'messages'; it has: {', '.join(record)}")
        row: dict[str, Any] = {name: _PARSERS[name](record.get(name), name, where) for name in names}
        for message in row.get("messages") or ():
            message.update(dict.fromkeys(key for key in keys if key not in message))
        yield row


def _parse_text(value: Any, name: str, where: str) -> str | None:
    return None if value is None else require_text(value, name, where)


def _parse_json(value: Any, name: str, where: str) -> str | None:
    """Return a value of any structure as JSON: tables have one type per column."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_messages(value: Any, name: str, where: str) -> list[Row] | None:
    messages = _require_list(value, name, where)
    if messages is None:
        return None
    parsed = []
    for message in messages:
        row = {key: value for key, value in message.items() if value} if isinstance(message, dict) else {}
        content = join_text_parts(message.get("content")) if row else None
        has_content = isinstance(content, str) or (content is None and "tool_calls" in row)
        if not isinstance(row.get("role"), str) or not has_content or set(row) - {"role", "content", *MESSAGE}:
            expected = f"{name} as a list of {{'role': …, 'content': …}}, other keys are {', '.join(MESSAGE)}"
            raise ExpoundError(f"{where}: expected {expected}, got {message!r:.80}")
        row = {key: _parse_json(value, name, where) for key, value in row.items()}
        parsed.append(row | {"content": content})
    return parsed


def _parse_sources(value: Any, name: str, where: str) -> list[Row] | None:
    if isinstance(value, dict):
        value = [{"name": title, "text": text} for title, text in value.items()]
    entries = _require_list(value, name, where)
    if entries is None:
        return None
    sources = []
    for number, entry in enumerate(entries, 1):
        row = entry if isinstance(entry, dict) else {"text": entry}
        title = row.get("name") or row.get("title") or f"source {number}"
        sources.append({"name": str(title), "text": require_text(row.get("text"), name, where)})
    return sources


def _parse_names(value: Any, name: str, where: str) -> list[str] | None:
    names = _require_list(value, name, where)
    return None if names is None else [require_text(source, name, where) for source in names]


def _require_list(value: Any, name: str, where: str) -> list[Any] | None:
    if value is not None and not isinstance(value, list):
        raise ExpoundError(f"{where}: expected a list in {name!r}, got {type(value).__name__}")
    return value


_PARSERS: dict[str, Callable[[Any, str, str], Any]] = dict.fromkeys(EXCHANGE, _parse_text) | {
    "messages": _parse_messages,
    "sources": _parse_sources,
    "evidence": _parse_names,
    "tools": _parse_json,
    "chat_template_kwargs": _parse_json,
}


TEXTS = ("text", "text_pair")


def exclude_examples(data: Dataset, *others: Dataset) -> Dataset:
    """Return the examples whose texts (image, prompt) are not in any of the other datasets."""
    excluded: set[Hashable] = set()
    for other in others:
        excluded.update(_example_keys(other))
    return data.select(np.flatnonzero([key not in excluded for key in _example_keys(data)]))


def _example_keys(data: Dataset) -> list[Hashable]:
    """Return what identifies each example: its texts, its image, or the prompt and sources of generated text."""
    texts: list[Hashable] = [*zip(*(data[name][:] for name in TEXTS if name in data.column_names), strict=True)]
    if texts:
        return texts
    if "image" in data.column_names:
        return [(image.size, image.tobytes()) for image in data["image"]]
    return [exchange_key(row) for row in data]
