"""Left-padded batches of prompts and responses that are given as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from exegete.errors import ExegeteError
from exegete.models.batch import Batch


def make_batch(
    prompts: Any,
    responses: Any,
    pad_id: int,
    content: Any = None,
    unit_of: Any = None,
    foils: Any = None,
    start: Sequence[int] = (),
) -> Batch:
    """Return a batch; see `GeneratingModel.batch`. `start`: ids that a decoder reads before each response."""
    prompt_rows, response_rows = _read_rows("prompt_ids", prompts), _read_rows("response_ids", responses)
    if len(prompt_rows) != len(response_rows):
        raise ExegeteError(f"expected a response for each of {len(prompt_rows)} prompts, got {len(response_rows)}")
    ids: list[Tensor] = []
    lengths: list[tuple[int, int]] = []
    for number, (prompt, response) in enumerate(zip(prompt_rows, response_rows, strict=True)):
        if not len(prompt) or not len(response):
            empty = "response" if len(prompt) else "prompt"
            raise ExegeteError(f"example {number} has an empty {empty}: each needs one token at least")
        ids.append(torch.cat([prompt, torch.tensor(start).long(), response]))
        lengths.append((len(prompt), len(response)))
    # Rows end with start and response, so both masks are ends of rows.
    in_response = [_mark_end(len(row), response) for row, (_, response) in zip(ids, lengths, strict=True)]
    decoder_mask = None
    if start:
        decoder_mask = _pad_left([_mark_end(len(row), len(row) - p) for row, (p, _) in zip(ids, lengths, strict=True)])
    batch = Batch.from_ids(
        _pad_left(ids, pad_id),
        _pad_left([torch.ones_like(row) for row in ids]),
        response=_pad_left(in_response),
        content=None if content is None else _pad_left(_extend_rows("content", content, lengths, False, len(start))),
        unit_of=None if unit_of is None else _pad_left(_extend_rows("unit_of", unit_of, lengths, -1, len(start)), -1),
        decoder_mask=decoder_mask,
    )
    return replace(batch, foil=None if foils is None else _read_foils(foils, lengths))


def _mark_end(length: int, count: int) -> Tensor:
    return torch.arange(length) >= length - count


def _read_rows(name: str, values: Any) -> list[Tensor]:
    """Return the numbers [n] of one example or several, from lists, arrays or tensors."""
    try:
        # A flat list is one example; a list of rows may be ragged, which torch cannot read at once.
        if not isinstance(values, Sequence) or (len(values) and isinstance(values[0], int | bool)):
            values = torch.as_tensor(values)
            values = values[None] if values.ndim == 1 else values
        rows = [torch.as_tensor(row, device="cpu") for row in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ExegeteError(f"{name} cannot be read as rows of integers: {error}") from error
    # torch reads an empty list as floating point.
    if not rows or any(row.ndim != 1 or (len(row) and row.is_floating_point()) for row in rows):
        raise ExegeteError(f"expected {name} as one row of integers or one for each example")
    for number, row in enumerate(rows):
        if row.dtype != torch.bool:
            rows[number] = row.long()
    return rows


def _extend_rows(name: str, values: Any, lengths: list[tuple[int, int]], fill: Any, start: int) -> list[Tensor]:
    """Return rows over prompt, start and response, from rows over prompt and response or over the prompt alone."""
    rows = _read_rows(name, values)
    if len(rows) != len(lengths):
        raise ExegeteError(f"expected {name} for {len(lengths)} examples, got {len(rows)} rows")
    extended = []
    for number, (row, (prompt, response)) in enumerate(zip(rows, lengths, strict=True)):
        whole = prompt + response
        if len(row) not in (prompt, whole):
            raise ExegeteError(
                f"expected {name} of example {number} for its {prompt} prompt tokens or all {whole} tokens, "
                f"got {len(row)}"
            )
        after = torch.cat([row[prompt:], row.new_full((whole - len(row),), fill)])
        extended.append(torch.cat([row[:prompt], row.new_full((start,), fill), after]))
    return extended


def _read_foils(foils: Any, lengths: list[tuple[int, int]]) -> Tensor:
    """Return a foil [B, R] for each token of each response."""
    rows = _read_rows("foil_ids", foils)
    expected = [response for _, response in lengths]
    if [len(row) for row in rows] != expected:
        raise ExegeteError(f"expected a foil for each response token, {expected} of them")
    return pad_sequence(rows, batch_first=True, padding_value=0)


def _pad_left(rows: list[Tensor], fill: Any = 0) -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=fill, padding_side="left")
