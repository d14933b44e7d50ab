"""Rows of generated text: a prompt or messages, sources, the response, and which sources it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from exegete.data.readers.base import Row, Table, require_text
from exegete.data.readers.columns import Records
from exegete.errors import ExegeteError

EXCHANGE = ("prompt", "messages", "sources", "response", "evidence", "kind")


def exchange_features() -> dict[str, Any]:
    """The columns' types. `evidence`: names of sources, null where nobody looked; `kind`: of question."""
    from datasets import List, Value

    text = Value("string")
    return {
        "prompt": text,
        "messages": List({"role": text, "content": text}),
        "sources": List({"name": text, "text": text}),
        "response": text,
        "evidence": List(text),
        "kind": text,
    }


def are_exchanges(records: Records) -> bool:
    """Whether rows are about generated text: with a prompt or messages, and nothing that is usual for other texts."""
    names = {name for _, row in records for name in row}
    return bool(names & {"prompt", "messages"}) and not names & {"text", "label"}


def exchange_key(row: Row) -> str:
    """All that is asked, as one text; rows that ask the same stay in the same split."""
    return json.dumps([row.get(name) for name in EXCHANGE[:3]], ensure_ascii=False)


def make_exchange_table(records: Records) -> Table:
    """The rows with those of the columns that any has.

    Raises:
        ExegeteError: a row without a prompt and messages or with both, or a value of another form, naming the place.
    """
    from datasets import Features

    there = {name for _, row in records for name in row if row[name] is not None}
    known = exchange_features()
    columns = {name: known[name] for name in EXCHANGE if name in there}
    return Table(Features(columns), _make_rows(records, tuple(columns)))


def _make_rows(records: Records, names: tuple[str, ...]) -> Iterator[Row]:
    for where, record in records:
        if (record.get("prompt") is None) == (record.get("messages") is None):
            raise ExegeteError(f"{where}: expected either 'prompt' or 'messages'; it has: {', '.join(record)}")
        yield {name: _READ[name](record.get(name), name, where) for name in names}


def _parse_text(value: Any, name: str, where: str) -> str | None:
    return None if value is None else require_text(value, name, where)


def _parse_messages(value: Any, name: str, where: str) -> list[Row] | None:
    for one in _require_list(value, name, where) or ():
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("role", "content")):
            raise ExegeteError(f"{where}: expected {name} as a list of {{'role': …, 'content': …}}, got {one!r:.80}")
    return None if value is None else [{"role": one["role"], "content": one["content"]} for one in value]


def _parse_sources(value: Any, name: str, where: str) -> list[Row] | None:
    if isinstance(value, dict):
        value = [{"name": each, "text": text} for each, text in value.items()]
    found = []
    for number, one in enumerate(_require_list(value, name, where) or (), 1):
        row = one if isinstance(one, dict) else {"text": one}
        title = next((row[key] for key in ("name", "title") if row.get(key)), f"source {number}")
        found.append({"name": str(title), "text": require_text(row.get("text"), name, where)})
    return None if value is None else found


def _parse_names(value: Any, name: str, where: str) -> list[str] | None:
    found = _require_list(value, name, where)
    return None if found is None else [require_text(one, name, where) for one in found]


def _require_list(value: Any, name: str, where: str) -> list[Any] | None:
    if value is not None and not isinstance(value, list):
        raise ExegeteError(f"{where}: expected a list in {name!r}, got {type(value).__name__}")
    return value


_READ = {
    "prompt": _parse_text,
    "messages": _parse_messages,
    "sources": _parse_sources,
    "response": _parse_text,
    "evidence": _parse_names,
    "kind": _parse_text,
}
