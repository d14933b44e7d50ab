"""Sharing of keys and values between perturbed texts that begin alike.

The texts form a tree of their common beginnings. Each branch is run once, on the cached keys and values of its parents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from expound.models.batch import Batch, pack
from expound.models.hugging_face import HuggingFaceModel, is_exact
from expound.models.state import CACHE_ARGUMENTS

MAX_TOKEN_SHARE = 0.8
"""A tree is used only if its passes, which are smaller, read at most this share of the tokens of plain passes."""
TEXTS_PER_TREE = 512
"""Texts per tree; keys and values are kept until their tree is done."""
PASS_COSTS = {"cpu": 24, "cuda": 4096}
"""The number of tokens that cost as much as one more pass."""
CACHED_TOKENS = {"cpu": 1 << 14, "cuda": 1 << 17}
"""The most tokens whose keys and values one pass holds, with shared beginnings; one text is always read."""

PLAIN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)
"""Layers of a cache that hold keys and values and nothing else; classes derived from them hold more."""

KeyValues = list[tuple[Tensor, Tensor]]
"""Keys and values [H, n, d_h] of n tokens, layer by layer."""


@dataclass(frozen=True, slots=True)
class PerturbedText:
    """Token ids [n] that end with `response` generated tokens, and the response's foils, if any.

    `skipped` positions are left out between a cached beginning and the tokens after it.
    """

    ids: Tensor
    response: int
    foil: Tensor | None = None
    skipped: int = 0

    @property
    def shareable_tokens(self) -> int:
        """The number of first tokens that other texts may share."""
        # Not the last token of the prompt: it is the first position whose logits are read.
        return len(self.ids) - self.response - 1


class Branch(NamedTuple):
    """A text whose first `begin` tokens are read on the branch `parent` (−1: none), in pass number `level`."""

    version: int
    parent: int
    begin: int
    level: int


def supports_prefix_sharing(model: HuggingFaceModel) -> bool:
    """Return whether the model's cache is a plain key/value cache."""
    is_causal = model.task.is_generated and not model.config.is_encoder_decoder
    takes_arguments = {"position_ids", "use_cache"} <= model.forward_parameters
    if not is_causal or not takes_arguments or model.forward_parameters.isdisjoint(CACHE_ARGUMENTS):
        return False
    # Convolutions (LFM2), linear attention (MiniMax) and state-space models (Mamba) keep a running state, from which no
    # beginning can be cut out. Not all of them say so by `_is_stateful`, but their layers of the cache do.
    is_stateful = getattr(model.model, "_is_stateful", False)
    layers = DynamicCache(config=model.config).layers
    return not is_stateful and all(type(layer) in PLAIN_LAYERS for layer in layers)


def shares_prefixes(model: Any, batch: Batch) -> bool:
    """Return whether a pass on cached keys and values gives the model's own answer to a response."""

    def continue_halfway(alone: Batch) -> Tensor:
        assert alone.response is not None
        foil = None if alone.foil is None else alone.foil[0]
        text = PerturbedText(alone.inputs["input_ids"][0], int(alone.response.sum()), foil)
        _, new = _continue(model, [text], [[]])
        half = text.shareable_tokens // 2
        beginning = [(keys[:, :half], values[:, :half]) for keys, values in new.copy(0)]
        # Beside each other, so that the cache has padding: GIT extends a mask that is as wide as its cache.
        return _continue(model, [text, text], [[beginning], []])[0]

    return is_exact(model, "prefix sharing", batch, continue_halfway)


def build_tree(texts: Sequence[PerturbedText]) -> list[Branch]:
    """Return branches in an order in which parents come first; every shared token is on one branch only.

    Where texts differ, the branch continues with the largest group of them, so that few passes depend on one another.
    """
    # Big-endian bytes sort like the numbers that they encode.
    rows = [text.ids[: max(0, text.shareable_tokens)].cpu().numpy().astype(">i4") for text in texts]
    order = sorted(range(len(rows)), key=lambda row: rows[row].tobytes())
    # common[i]: tokens shared by sorted texts i − 1 and i. A group shares the minimum over its inner boundaries.
    common = np.array([0, *(_count_common(rows[one], rows[other]) for one, other in pairwise(order))])
    branches: list[Branch] = []
    pending = [(0, len(order), -1, 0)]
    # The list grows while it is read: groups that split off are appended.
    for *group, parent, begin in pending:
        low, high = group
        while high - low > 1:
            shared = int(common[low + 1 : high].min())
            cuts = low + 1 + np.flatnonzero(common[low + 1 : high] == shared)
            groups = sorted(pairwise([low, *cuts.tolist(), high]), key=lambda bounds: bounds[1] - bounds[0])
            for start, stop in groups[:-1]:
                pending.append((start, stop, len(branches) if shared else -1, shared))
            low, high = groups[-1]
        level = branches[parent].level + 1 if parent >= 0 else 0
        branches.append(Branch(order[low], parent, begin, level))
    return branches


def count_tokens(texts: Sequence[PerturbedText], branches: Iterable[Branch]) -> int:
    """Return the number of tokens that the passes over these branches read."""
    return sum(len(texts[branch.version].ids) - branch.begin for branch in branches)


def run_prefix_tree(model: Any, texts: Sequence[PerturbedText], budget: int) -> list[Tensor] | None:
    """Return each text's table [R, 2 or 3], see `Generation`; None if plain passes are faster.

    Args:
        model: a `GeneratingModel` that `supports_prefix_sharing`.
        texts: two at least.
        budget: tokens per pass.
    """
    answers: list[Tensor] = []
    for first in range(0, len(texts), TEXTS_PER_TREE):
        group = texts[first : first + TEXTS_PER_TREE]
        branches = build_tree(group)
        # The first tree decides for all: texts of one call are alike.
        if not first and count_tokens(group, branches) > MAX_TOKEN_SHARE * sum(len(text.ids) for text in group):
            return None
        answers += _run_branches(model, group, branches, budget)
    return answers


def run_without_cached(model: Any, text: PerturbedText, units: Sequence[Tensor]) -> list[Tensor] | None:
    """Return the response's tables if the text's end, from the last unit on, does not see each unit's keys and values.

    These are computed once, from the whole text, so tokens between a unit and the end still know the unit.

    Args:
        model: a `GeneratingModel` that `supports_prefix_sharing`.
        text: the text, without a foil.
        units: masks [n] of the tokens of each unit, in the order of the text.

    Returns:
        A table [R, 2] per unit; None if the model's cache does not keep all tokens.
    """
    _, new = _continue(model, [text], [[]])
    whole, end = new.copy(0), int(units[-1].nonzero()[0])
    if any(keys.shape[1] < text.shareable_tokens for keys, _ in whole):
        return None
    tables: list[Tensor] = []
    rows = max(1, CACHED_TOKENS.get(model.device.type, CACHED_TOKENS["cuda"]) // len(text.ids))
    for first in range(0, len(units), rows):
        texts, past = list[PerturbedText](), list[list[KeyValues]]()
        for unit in units[first : first + rows]:
            seen = (~unit[:end]).nonzero()[:, 0]
            past.append([[(keys[:, seen], values[:, seen]) for keys, values in whole]])
            ids = torch.cat([text.ids[:end][seen], text.ids[end:][~unit[end:]]])
            texts.append(replace(text, ids=ids, skipped=end - len(seen)))
        tables += list(_continue(model, texts, past)[0])
    return tables


def _run_branches(model: Any, texts: Sequence[PerturbedText], branches: Sequence[Branch], budget: int) -> list[Tensor]:
    kept: dict[int, KeyValues] = {}
    parents = {branch.parent for branch in branches}
    answers: dict[int, Tensor] = {}
    overhead = PASS_COSTS.get(model.device.type, PASS_COSTS["cuda"])
    cached = CACHED_TOKENS.get(model.device.type, CACHED_TOKENS["cuda"])
    for level in range(1 + max(branch.level for branch in branches)):
        sizes = {}
        for number, branch in enumerate(branches):
            if branch.level == level:
                sizes[number] = len(texts[branch.version].ids) - branch.begin
        order = sorted(sizes, key=lambda number: -sizes[number])
        for numbers in _limit_rows(texts, branches, order, pack([sizes[n] for n in order], budget, overhead), cached):
            past = [_get_prefix(branches, kept, branches[number]) for number in numbers]
            table, new = _continue(model, [texts[branches[number].version] for number in numbers], past)
            for row, number in enumerate(numbers):
                answers[branches[number].version] = table[row]
                if number in parents:
                    kept[number] = new.copy(row)
    return [answers[number] for number in range(len(texts))]


def _limit_rows(
    texts: Sequence[PerturbedText], branches: Sequence[Branch], order: Sequence[int], parts: Iterable[slice], most: int
) -> Iterator[Sequence[int]]:
    """Yield the branches of each pass; a pass holds at most `most` tokens, shared beginnings included.

    Without this limit, many short ends of a long prompt would each copy its keys and values in one pass.
    """
    for part in parts:
        numbers = order[part]
        rows = max(1, most // max(len(texts[branches[number].version].ids) for number in numbers))
        for start in range(0, len(numbers), rows):
            yield numbers[start : start + rows]


def _count_common(one: NDArray[Any], other: NDArray[Any]) -> int:
    """Return the number of first tokens that two texts have in common."""
    size = min(len(one), len(other))
    differences = np.flatnonzero(one[:size] != other[:size])
    return int(differences[0]) if len(differences) else size


def _get_prefix(branches: Sequence[Branch], kept: dict[int, KeyValues], branch: Branch) -> list[KeyValues]:
    """Return the keys and values of the branch's first `begin` tokens, one piece per branch on the way, in order."""
    pieces: list[KeyValues] = []
    while branch.begin:
        parent = branches[branch.parent]
        size = branch.begin - parent.begin
        pieces.append([(keys[:, :size], values[:, :size]) for keys, values in kept[branch.parent]])
        branch = parent
    return pieces[::-1]


class _NewKeyValues(NamedTuple):
    """The key/value cache of one pass; row r adds `counts[r]` shareable entries from `start`."""

    cache: DynamicCache
    start: int
    counts: list[int]

    def copy(self, row: int) -> KeyValues:
        # A copy, since a view would keep the whole batch's cache in memory.
        part = slice(self.start, self.start + self.counts[row])
        return [(layer.keys[row, :, part].clone(), layer.values[row, :, part].clone()) for layer in self.cache.layers]


def _continue(
    model: Any, texts: Sequence[PerturbedText], past: Sequence[list[KeyValues]]
) -> tuple[Tensor, _NewKeyValues]:
    """Run one pass over the tokens after each text's prefix; return tables [B, R, 2 or 3] and the cache."""
    prefix = []
    for pieces in past:
        # The keys of a piece's first layer [H, n, d] tell its number of tokens.
        prefix.append(sum(piece[0][0].shape[1] for piece in pieces))
    new = [text.ids[start:] for text, start in zip(texts, prefix, strict=True)]
    longest_prefix = max(prefix)
    ids = pad_sequence(new, batch_first=True, padding_value=model.pad_id).to(model.device)
    place = torch.arange(ids.shape[1], device=ids.device)
    starts = torch.tensor(prefix, device=ids.device)[:, None]
    ends = torch.tensor([len(row) for row in new], device=ids.device)[:, None]
    responses = torch.tensor([[text.response] for text in texts], device=ids.device)
    skipped = torch.tensor([[text.skipped] for text in texts], device=ids.device)
    real = place < ends
    # Prefixes are at the right end of the cache, padding before them; new tokens are padded on the right.
    is_prefix = torch.arange(longest_prefix, device=ids.device) >= longest_prefix - starts
    foils = [text.foil for text in texts if text.foil is not None]
    batch = Batch(
        inputs={
            "input_ids": ids,
            # Padding on the right needs no mask: attention is causal, so no real token sees it.
            "attention_mask": torch.cat([is_prefix, torch.ones_like(real)], 1).long(),
            "position_ids": (starts + skipped + place).where(real, 0) + model.first_position,
        },
        attended=real,
        content=real,
        word_of=torch.full_like(ids, -1),
        response=real & (place >= ends - responses),
        foil=torch.stack(foils) if foils else None,
    )
    cache = _build_cache(past, longest_prefix) if longest_prefix else DynamicCache()
    outputs, cache = model.forward_with_cache(batch, cache)
    counts = [max(0, text.shareable_tokens) - start for text, start in zip(texts, prefix, strict=True)]
    return outputs.logits, _NewKeyValues(cache, longest_prefix, counts)


def _build_cache(past: Sequence[list[KeyValues]], length: int) -> DynamicCache:
    """Return a cache of `length` tokens with each row's pieces side by side at its right end, zeros before them."""
    first = next(pieces[0] for pieces in past if pieces)
    layers = []
    for layer, (keys, values) in enumerate(first):
        layers.append((_join_pieces(past, layer, 0, length, keys), _join_pieces(past, layer, 1, length, values)))
    return DynamicCache(layers)


def _join_pieces(past: Sequence[list[KeyValues]], layer: int, kind: int, length: int, like: Tensor) -> Tensor:
    """Return the keys (`kind` 0) or values (1) of a layer, [B, H, length, d_h]."""
    heads, _, size = like.shape
    joined = like.new_zeros(len(past), heads, length, size)
    for row, pieces in enumerate(past):
        end = length
        for piece in reversed(pieces):
            part = piece[layer][kind]
            joined[row, :, end - part.shape[1] : end] = part
            end -= part.shape[1]
    return joined
