"""Versions of a text that begin alike: the keys and values of a beginning are computed once and shared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from exegete.models.batch import Batch
from exegete.models.loading.adapters import unwrap_adapter
from exegete.models.perturbation.packing import pack_by_padding

MAX_TOKEN_SHARE = 0.8
"""The share of a loop's tokens up to which a tree, with its smaller passes, is taken."""
TEXTS_PER_TREE = 512
"""Versions that grow one tree; beginnings are kept until it is done."""
PASS_COSTS = {"cpu": 24, "cuda": 4096}
"""Tokens that one more pass costs."""

KeyValues = list[tuple[Tensor, Tensor]]
"""Keys and values [H, n, d_h] of n tokens, layer by layer."""


@dataclass(frozen=True, slots=True)
class PerturbedText:
    """A text as token ids [n], of which the last `response` are generated text; its foils, where there are some."""

    ids: Tensor
    response: int
    foil: Tensor | None = None

    @property
    def shareable_tokens(self) -> int:
        """How many of its tokens others may share: not the last of the prompt, where the response is first read."""
        return len(self.ids) - self.response - 1


class Branch(NamedTuple):
    """A version whose first `begin` tokens lie on the way to branch `parent` (-1: none), in pass number `level`."""

    version: int
    parent: int
    begin: int
    level: int


def supports_prefix_sharing(model: Any) -> bool:
    """Whether a model keeps keys and values, and nothing else, of what it has read."""
    causal = model.task.name == "generation" and not model.config.is_encoder_decoder
    known = all(model.accepts(name) for name in ("past_key_values", "position_ids", "use_cache"))
    return causal and known and not getattr(unwrap_adapter(model.model), "_is_stateful", False)


def build_tree(versions: Sequence[PerturbedText]) -> list[Branch]:
    """Branches in an order in which parents come first; every shared token is on one branch alone.

    Where versions part, the way goes on to most of them, so that few passes depend on one another.
    """
    rows = [version.ids[: max(0, version.shareable_tokens)].cpu().numpy().astype(">i4") for version in versions]
    order = sorted(range(len(rows)), key=lambda row: rows[row].tobytes())
    alike = np.array([0, *(_alike(rows[one], rows[other]) for one, other in pairwise(order))])
    found: list[Branch] = []
    pending = [(0, len(order), -1, 0)]
    for *group, parent, begin in pending:
        low, high = group
        while high - low > 1:
            least = int(alike[low + 1 : high].min())
            cuts = low + 1 + np.flatnonzero(alike[low + 1 : high] == least)
            *others, most = sorted(pairwise([low, *cuts.tolist(), high]), key=lambda part: part[1] - part[0])
            pending += [(*part, len(found) if least else -1, least) for part in others]
            low, high = most
        found.append(Branch(order[low], parent, begin, found[parent].level + 1 if parent >= 0 else 0))
    return found


def count_tokens(versions: Sequence[PerturbedText], branches: Iterable[Branch]) -> int:
    """How many tokens the passes over these branches read."""
    return sum(len(versions[branch.version].ids) - branch.begin for branch in branches)


def run_prefix_tree(model: Any, versions: Sequence[PerturbedText], budget: int) -> list[Tensor] | None:
    """Each version's table [R, 2 or 3], see `Generation`, in passes of at most `budget` tokens; None: a loop does it.

    Args:
        model: a `GeneratingModel` that `supports_prefix_sharing`.
        versions: two at least.
        budget: tokens of a pass.
    """
    answers: list[Tensor] = []
    for first in range(0, len(versions), TEXTS_PER_TREE):
        some = versions[first : first + TEXTS_PER_TREE]
        branches = build_tree(some)
        if not first and count_tokens(some, branches) > MAX_TOKEN_SHARE * sum(len(version.ids) for version in some):
            return None
        answers += _grown(model, some, branches, budget)
    return answers


def _grown(model: Any, versions: Sequence[PerturbedText], branches: Sequence[Branch], budget: int) -> list[Tensor]:
    kept: dict[int, KeyValues] = {}
    needed = {branch.parent for branch in branches}
    answers: dict[int, Tensor] = {}
    overhead = PASS_COSTS.get(model.device.type, PASS_COSTS["cuda"])
    for level in range(1 + max(branch.level for branch in branches)):
        sizes = {n: len(versions[one.version].ids) - one.begin for n, one in enumerate(branches) if one.level == level}
        order = sorted(sizes, key=lambda number: -sizes[number])
        for part in pack_by_padding([sizes[number] for number in order], budget, overhead):
            numbers = order[part]
            past = [_beginning(branches, kept, branches[number]) for number in numbers]
            table, own = _continued(model, [versions[branches[number].version] for number in numbers], past)
            answers |= {branches[number].version: row for number, row in zip(numbers, table, strict=True)}
            kept |= {number: own(row) for row, number in enumerate(numbers) if number in needed}
    return [answers[number] for number in range(len(versions))]


def _alike(one: NDArray[Any], other: NDArray[Any]) -> int:
    """How many tokens two versions begin with alike."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size


def _beginning(branches: Sequence[Branch], kept: dict[int, KeyValues], branch: Branch) -> list[KeyValues]:
    """The keys and values of the branch's first tokens, in pieces from the first to the last."""
    pieces: list[KeyValues] = []
    while branch.begin:
        parent = branches[branch.parent]
        size = branch.begin - parent.begin
        pieces.append([(keys[:, :size], values[:, :size]) for keys, values in kept[branch.parent]])
        branch = parent
    return pieces[::-1]


def _continued(model: Any, versions: Sequence[PerturbedText], past: Sequence[list[KeyValues]]) -> tuple[Tensor, Any]:
    """Tables [B, R, 2 or 3] of one pass over what is new of each version, and a function from row to what it keeps."""
    begin = [sum(piece[0][0].shape[1] for piece in pieces) for pieces in past]
    new = [version.ids[start:] for version, start in zip(versions, begin, strict=True)]
    sizes, before = torch.tensor([len(row) for row in new]), max(begin)
    ids = pad_sequence(new, batch_first=True, padding_value=model.pad_id).to(model.device)
    place, starts = torch.arange(ids.shape[1], device=ids.device), torch.tensor(begin, device=ids.device)[:, None]
    ends = sizes.to(ids.device)[:, None]
    real, said = place < ends, torch.tensor([[version.response] for version in versions], device=ids.device)
    seen = torch.arange(before, device=ids.device) >= before - starts
    foils = [version.foil for version in versions if version.foil is not None]
    batch = Batch(
        inputs={
            "input_ids": ids,
            "attention_mask": torch.cat([seen, torch.ones_like(real)], 1).long(),  # nobody sees what comes after
            "position_ids": (starts + place).where(real, 0),
        },
        attended=real,
        content=real,
        word_of=torch.full_like(ids, -1),
        response=real & (place >= ends - said),
        foil=torch.stack(foils) if foils else None,
    )
    outputs, cache = model.forward_with_cache(batch, _cache(past, before) if before else DynamicCache())
    ends_shared = [max(0, version.shareable_tokens) - start for version, start in zip(versions, begin, strict=True)]

    def own(row: int) -> KeyValues:
        part = slice(before, before + ends_shared[row])
        return [(layer.keys[row, :, part].clone(), layer.values[row, :, part].clone()) for layer in cache.layers]

    return outputs.logits, own


def _cache(past: Sequence[list[KeyValues]], length: int) -> DynamicCache:
    """The pieces of every row side by side and at the right end of `length` tokens, zeros before them."""
    first = next(pieces[0] for pieces in past if pieces)
    return DynamicCache(
        [tuple(_joined(past, layer, kind, length, pair[kind]) for kind in (0, 1)) for layer, pair in enumerate(first)]
    )


def _joined(past: Sequence[list[KeyValues]], layer: int, kind: int, length: int, like: Tensor) -> Tensor:
    """[B, H, length, d_h] Keys (`kind` 0) or values (1) of a layer."""
    heads, _, size = like.shape
    joined = like.new_zeros(len(past), heads, length, size)
    for row, pieces in enumerate(past):
        parts = [piece[layer][kind] for piece in pieces]
        for part, end in _placed(parts, length):
            joined[row, :, end - part.shape[1] : end] = part
    return joined


def _placed(parts: Sequence[Tensor], end: int) -> Iterator[tuple[Tensor, int]]:
    """Each part with its end, the last part's being `end`."""
    for part in reversed(parts):
        yield part, end
        end -= part.shape[1]
