"""The one way in for examples: whatever holds texts, images or prompts becomes rows with canonical columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from expound.data.in_memory import is_column, read_table, to_dataset
from expound.data.load import load_data
from expound.data.readers.columns import LABELS, PAIRS, TEXTS, USUAL
from expound.data.readers.exchanges import ANSWERS, EXCHANGE
from expound.data.readers.registry import READERS
from expound.data.spans import read_rationale
from expound.errors import ExpoundError, unknown

KEYS = (
    *("text", "text_pair", "label", "rationale", "rationale_pair", "answer"),
    *("image", "span", "mask", "choices", "id", "kept", "label_name"),
)
"""The keys of a row with a text, a pair or an image."""
EXCHANGE_KEYS = (*EXCHANGE, "image_regions", "image_fill", "foil", "literal", "unit", "prompt_length", "id", "kept")
"""The keys of a row with generated text."""
LIKELY = dict.fromkeys(ANSWERS, "response") | {"rejected": "foil", "role": "messages", "conversations": "messages"}
LIKELY |= dict.fromkeys(("text", "instruction", "input", "question", "query"), "prompt")
LIKELY |= dict.fromkeys(("documents", "contexts", "context", "passages"), "sources")
LIKELY |= dict.fromkeys(("enable_thinking", "reasoning_effort"), "chat_template_kwargs")
LIKELY_OF_TEXTS = dict.fromkeys(("hypothesis", "sentence2", "question2", "context", "passage"), "text_pair")
LIKELY_OF_TEXTS |= dict.fromkeys(("target", "class", "category", "gold"), "label")
LIKELY_OF_TEXTS |= dict.fromkeys(("tokens", "words", "prompt", "messages", "document", "body", "input"), "text")
LIKELY_OF_TEXTS |= dict.fromkeys(("evidence", "highlights"), "rationale")
"""What keys of other names probably mean."""


def read_examples(data: Any, *, is_exchange: bool = False, **columns: Any) -> tuple[Sequence[Any], str]:
    """Return examples as a list, or as a dataset with canonical columns, and a line that says which columns are read.

    Args:
        data: an example (a text, a pair, an image, a row), several of those, or a table: a dataset, a data frame or
            series, a dict of lists, the path of a file, or a spec.
        is_exchange: whether examples are prompts and chats.
        columns: the columns of a table, see `ColumnOptions`.

    Raises:
        ExpoundError: what holds no examples, or unknown keys or columns.
    """
    if isinstance(data, Path) or (isinstance(data, str) and _is_spec(data)):
        return load_data(str(data), None, **columns), ""
    if isinstance(data, pd.Series):
        data = dict(data) if {*KEYS, *EXCHANGE_KEYS, *USUAL} & set(data.index) else data.tolist()
    if hasattr(data, "detach"):
        # A tensor; this module does not import torch.
        data = data.detach().cpu().numpy()
    if is_table(data) or columns:
        return _read_table(to_dataset(data, "given"), is_exchange, columns)
    examples = _to_list(data)
    rows = [row for row in examples if isinstance(row, Mapping)]
    names = list(dict.fromkeys(key for row in rows for key in row))
    # Rows alone may have usual names, as premise and hypothesis.
    usual = _find_usual(names) if len(rows) == len(examples) and not is_exchange else ()
    for name in names:
        if name not in (*(EXCHANGE_KEYS if is_exchange else KEYS), *usual):
            raise _make_key_error(str(name), is_exchange=is_exchange)
    if set(names) & set(usual) - set(KEYS):
        return _read_table(to_dataset(examples, "given"), is_exchange, columns)
    return examples, ""


def is_table(data: Any) -> bool:
    """Return whether the data is a table: named columns of many values."""
    if not isinstance(data, Mapping):
        kinds = ("features", "to_pylist", "to_dicts")
        return isinstance(data, pd.DataFrame) or any(hasattr(data, name) for name in kinds)
    if any(hasattr(part, "column_names") for part in data.values()):
        return True
    names = ("messages", "prompt", "text", "image", *sorted(USUAL))
    main: Any = next((data[name] for name in names if name in data), None)
    # A row of a chat has a list of messages; a table has a list of such lists.
    return is_column(main) and not (len(main) and isinstance(next(iter(main)), Mapping))


def read_row(row: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """Return a row of a text with its rationales as characters, however they were given, and its label as a number.

    Raises:
        ExpoundError: a rationale that does not belong to the text.
    """
    read = dict(row)
    for name, text in (("rationale", read.get("text")), ("rationale_pair", read.get("text_pair"))):
        marked = read.get(name)
        if marked is not None and isinstance(text, str):
            marked = marked.tolist() if isinstance(marked, np.ndarray) else marked
            read[name] = read_rationale(marked, text, f"example {number}")
    if isinstance(read.get("label"), bool | np.bool_):
        read["label"] = int(read["label"])
    elif isinstance(read.get("label"), float | np.floating) and np.isnan(read["label"]):
        read["label"] = None
    return read


def check_keys(row: Mapping[Any, Any]) -> None:
    """Raise ExpoundError for a key of a row of generated text that is not known; it names the likely one."""
    for key in row:
        if key not in EXCHANGE_KEYS:
            raise _make_key_error(str(key), is_exchange=True)


def _make_key_error(key: str, *, is_exchange: bool) -> ExpoundError:
    keys = EXCHANGE_KEYS if is_exchange else KEYS
    likely = (LIKELY if is_exchange else LIKELY_OF_TEXTS).get(key)
    if likely is None:
        return unknown("key of a row", key, keys)
    return ExpoundError(f"unknown key of a row {key!r}. Did you mean {likely!r}? Valid choices: {', '.join(keys)}")


def _find_usual(names: Sequence[str]) -> tuple[str, ...]:
    """Return the usual names of one text, or of two, and of a label and an answer, that are among the names."""
    texts = next((pair for pair in PAIRS if set(pair) <= set(names)), None)
    found = list(texts or [name for name in TEXTS if name in names][:1])
    for usual in (LABELS, ("answer", "answers") if texts else ()):
        found += [name for name in usual if name in names][:1]
    return tuple(found)


def _is_spec(text: str) -> bool:
    """Return whether a text is the path of a file, or a spec; a spec with white space is one if its path exists."""
    name, _, path = text.partition("?")[0].partition(":")
    # The operating system refuses names that are too long, or that contain a zero.
    with suppress(OSError, ValueError):
        if name in READERS and path:
            return not any(map(str.isspace, text)) or Path(path).exists()
        return "." in text and Path(text).suffix[1:].lower() in READERS and Path(text).is_file()
    return False


def _read_table(data: Any, is_exchange: bool, columns: Mapping[str, Any]) -> tuple[Sequence[Any], str]:
    """Return a table in canonical form, and a line that says how it was read."""
    names = list(data.column_names)
    if not len(data):
        raise ExpoundError("there is nothing to explain: no example was given")
    if not is_exchange:
        if not columns and set(names) <= set(KEYS) and {"text", "image"} & set(names):
            return data, ""
        table, line = read_table(data, **columns)
        for name in ("span", "mask", "choices"):
            if name in names and len(table) == len(data):
                table = table.add_column(name, data[name])
        return table, line
    if columns:
        raise ExpoundError(f"{next(iter(columns))} names a column of texts: call the columns of prompts by their names")
    if not {"prompt", "messages"} & set(names):
        raise ExpoundError(f"the table has no column 'prompt' or 'messages'; it has: {', '.join(names)}")
    unused = [name for name in names if name not in EXCHANGE_KEYS]
    for name in unused:
        if name in LIKELY and LIKELY[name] not in names:
            raise _make_key_error(name, is_exchange=True)
    line = (
        f"{len(data)} rows; {', '.join(name for name in names if name in EXCHANGE_KEYS)}; unused: {', '.join(unused)}"
    )
    return list(data.remove_columns(unused)), line if unused else ""


def _to_list(examples: Any) -> Sequence[Any]:
    """Return a single example as a list of one, several as a list."""
    is_image = hasattr(examples, "convert")
    if isinstance(examples, np.ndarray) and examples.dtype.kind not in "OUST":
        is_image = examples.ndim in (2, 3)
    if isinstance(examples, str | Mapping | tuple) or is_image:
        return [examples]
    if not isinstance(examples, Iterable) or isinstance(examples, bytes | bytearray | set | frozenset):
        raise ExpoundError(f"expected an example or several, got {examples!r:.80}")
    sequence = examples if isinstance(examples, Sequence) else list(examples)
    if not sequence:
        raise ExpoundError("there is nothing to explain: no example was given")
    return sequence
