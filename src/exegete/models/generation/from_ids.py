"""Prompts and responses given as token ids become left-padded batches."""

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
    """See `GeneratingModel.batch`; `start`: ids that a decoder reads before each response, behind an encoder's."""
    prompt, response = _rows("prompt_ids", prompts), _rows("response_ids", responses)
    if len(prompt) != len(response):
        raise ExegeteError(f"expected a response for each of {len(prompt)} prompts, got {len(response)}")
    for number, (asked, said) in enumerate(zip(prompt, response, strict=True)):
        if not len(asked) or not len(said):
            empty = "response" if len(asked) else "prompt"
            raise ExegeteError(f"example {number} has an empty {empty}: each needs one token at least")
    lengths, begin = [(len(asked), len(said)) for asked, said in zip(prompt, response, strict=True)], len(start)
    ids = [torch.cat([asked, torch.tensor(start).long(), said]) for asked, said in zip(prompt, response, strict=True)]
    made = Batch.from_ids(
        _padded(ids, pad_id),
        _padded([torch.ones_like(row) for row in ids], 0),
        response=_padded(
            [torch.arange(len(row)) >= len(row) - r for row, (_, r) in zip(ids, lengths, strict=True)], False
        ),
        content=None if content is None else _padded(_over("content", content, lengths, False, begin), False),
        unit_of=None if unit_of is None else _padded(_over("unit_of", unit_of, lengths, -1, begin), -1),
        decoder_mask=_padded([torch.arange(len(row)) >= p for row, (p, _) in zip(ids, lengths, strict=True)], False)
        if begin
        else None,
    )
    return replace(made, foil=None if foils is None else _foils(foils, lengths))


def _rows(name: str, given: Any) -> list[Tensor]:
    """Each example's numbers [n]: from one example or several, as lists, arrays or tensors."""
    try:
        if not isinstance(given, Sequence) or (len(given) and isinstance(given[0], int | bool)):
            given = torch.as_tensor(given)
            given = given[None] if given.ndim == 1 else given
        rows = [torch.as_tensor(row, device="cpu") for row in given]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ExegeteError(f"{name} cannot be read as rows of integers: {error}") from error
    if not rows or any(row.ndim != 1 or (len(row) and row.is_floating_point()) for row in rows):
        raise ExegeteError(f"expected {name} as one row of integers or one for each example")
    return [row if row.dtype == torch.bool else row.long() for row in rows]


def _over(name: str, given: Any, lengths: list[tuple[int, int]], fill: Any, begin: int) -> list[Tensor]:
    """Rows over prompt, start and response, from rows over prompt and response or over the prompt alone."""
    rows = _rows(name, given)
    if len(rows) != len(lengths):
        raise ExegeteError(f"expected {name} for {len(lengths)} examples, got {len(rows)} rows")
    found = []
    for number, (row, (asked, said)) in enumerate(zip(rows, lengths, strict=True)):
        if len(row) not in (asked, asked + said):
            raise ExegeteError(
                f"expected {name} of example {number} for its {asked} prompt tokens or all {asked + said} tokens, "
                f"got {len(row)}"
            )
        whole = torch.cat([row, row.new_full((asked + said - len(row),), fill)])
        found.append(torch.cat([whole[:asked], row.new_full((begin,), fill), whole[asked:]]))
    return found


def _foils(foils: Any, lengths: list[tuple[int, int]]) -> Tensor:
    """[B, R] A foil for each token of each response."""
    rows = _rows("foil_ids", foils)
    if [len(row) for row in rows] != [said for _, said in lengths]:
        raise ExegeteError(f"expected a foil for each response token, {[said for _, said in lengths]} of them")
    return pad_sequence(rows, batch_first=True, padding_value=0)


def _padded(rows: list[Tensor], fill: Any) -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=fill, padding_side="left")
