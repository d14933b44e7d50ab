"""The one engine for perturbed inputs: a model's answers under many keep-masks.

Its floor is the work of the distinct, unpadded sequences: identical inputs are run once, sequences are sorted by length
and packed into passes of a fixed number of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from exegete.errors import ExegeteError, unknown
from exegete.heap import keep_freed
from exegete.models.batch import Batch
from exegete.models.passes.last_layer import skip_unread_positions
from exegete.models.perturbation.inputs import Deletion, PerturbedInputs, Replacement
from exegete.models.perturbation.packing import pack_by_tokens
from exegete.models.perturbation.prefix_tree import run_prefix_tree, supports_prefix_sharing

if TYPE_CHECKING:
    from exegete.models.explained import ExplainedModel

RemovalMethod = Literal["remove", "mask", "pad", "zero"]
TOKENS_PER_PASS = {"cpu": 1536, "cuda": 65536}


class PerturbationCache(dict[bytes, Tensor]):
    """Answers by what was asked; `last`: the call before, with what it was told and gave."""

    last: tuple[Batch, Tensor, RemovalMethod, Tensor] | None = None


def run_perturbed(model: ExplainedModel, batch: Batch, keep: Tensor, how: RemovalMethod) -> Tensor:
    """The model's logits of perturbed versions of a batch; see `ExplainedModel.predict_perturbed`."""
    if how not in get_args(RemovalMethod):
        raise unknown("perturbation", how, get_args(RemovalMethod))
    if keep.ndim != 3 or keep.shape[1:] != batch.content.shape:
        raise ExegeteError(f"expected keep of shape [N, {len(batch)}, {batch.length}], got {list(keep.shape)}")
    if keep.dtype != torch.bool:
        return _soft(model, batch, keep, how)
    memory = PerturbationCache() if model.perturbation_cache is None else model.perturbation_cache
    if (last := memory.last) and last[0] is batch and last[2] == how and torch.equal(last[1], keep):
        return last[3].clone()  # the next of several targets
    asked, keep = keep, (keep | ~batch.removable) & batch.attended
    if model.device.type == "cpu":
        keep_freed()
    versions = Deletion(model, batch, keep) if how == "remove" else Replacement(model, batch, keep, how)
    with torch.no_grad(), model.evaluation_mode(), skip_unread_positions(model, attention=False):
        answers = _answers(model, versions, how, memory)
    found = answers.view(*keep.shape[:2], *answers.shape[1:])
    memory.last = (batch, asked.clone(), how, found)
    return found.clone()


def _soft(model: ExplainedModel, batch: Batch, keep: Tensor, how: RemovalMethod) -> Tensor:
    """The blend of each version in the model's present mode, with a graph to `keep` where it has one."""
    if how == "remove":
        raise ExegeteError("a position cannot be removed by half: soft masks need how='mask', 'pad' or 'zero'")
    return torch.stack([model(batch, embeddings=model.blend(batch, weights, how)).logits for weights in keep])


def _answers(model: ExplainedModel, versions: PerturbedInputs, how: RemovalMethod, memory: PerturbationCache) -> Tensor:
    """Logits of every version [M, C] (spans: [M, 2, L])."""
    keys = versions.keys()
    first, version = _distinct(keys)
    names = [how.encode() + row[row >= 0].tobytes() for row in keys[first]]
    new = np.array([index for index, name in enumerate(names) if name not in memory], dtype=np.int64)
    lengths = versions.lengths.cpu().numpy()[first[new]]
    new = new[np.argsort(-lengths, kind="stable")]
    budget = TOKENS_PER_PASS.get(model.device.type, TOKENS_PER_PASS["cuda"])
    rows = torch.as_tensor(first[new], device=model.device)
    memory.update(zip((names[index] for index in new), _run(model, versions, rows, budget), strict=True))
    answers = [memory[name] for name in names]
    if model.task.name == "span":
        return _restored([answers[index] for index in version], versions.places)
    if model.task.name == "generation":
        return pad_sequence([answers[index] for index in version], batch_first=True)
    return torch.stack(answers)[torch.as_tensor(version, device=model.device)]


def _run(model: ExplainedModel, versions: PerturbedInputs, rows: Tensor, budget: int) -> list[Tensor]:
    """Answers of these versions, from long to short; beginnings are shared where that saves much."""
    if len(rows) > 1 and supports_prefix_sharing(model) and (texts := versions.texts(rows)):
        found = run_prefix_tree(model, texts, budget)
        if found is not None:
            return found
    sizes = versions.lengths[rows].tolist()
    parts = pack_by_tokens(sizes, budget, uniform=model.modality == "image")
    return [answer for part in parts for answer in versions.run(rows[part])]


def _distinct(keys: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers of the distinct rows, and for every row the number of its like among them."""
    rows = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.dtype.itemsize * keys.shape[1])))
    _, first, version = np.unique(rows.ravel(), return_index=True, return_inverse=True)
    return first, version


def _restored(answers: list[Tensor], places: Tensor) -> Tensor:
    """[M, 2, L] Spans back where their tokens stood; a position that is not there can be no end of a span."""
    grid = answers[0].new_full((len(places), 2, places.shape[1]), torch.finfo(answers[0].dtype).min)
    grid[places[:, None].expand_as(grid)] = torch.cat([answer.flatten() for answer in answers])
    return grid
