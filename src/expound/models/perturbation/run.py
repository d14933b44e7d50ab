"""Runs a model on perturbed inputs, given as keep-masks.

The cost is that of the distinct inputs without padding: identical inputs are run once, the rest are sorted by length
and packed into passes of a limited number of tokens.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from expound.errors import ExpoundError, check_choice
from expound.models.batch import Batch, get_token_budget, pack
from expound.models.hugging_face import MODEL_ERRORS, HuggingFaceModel, Probe, describe_failure, find_failure
from expound.models.passes.hooks import skip_unread_positions
from expound.models.perturbation.inputs import Deletion, Masking, PerturbedInputs, RegionRemoval, Replacement
from expound.models.perturbation.prefix_tree import run_prefix_tree, shares_prefixes, supports_prefix_sharing

RemovalMethod = Literal["remove", "mask", "pad", "zero", "attend"]


class PerturbationCache(dict[bytes, Tensor]):
    """Logits of perturbed inputs by their key; `last` holds the latest call's arguments and logits."""

    last: tuple[Batch, Tensor, RemovalMethod, Tensor] | None = None


def run_perturbed(
    model: HuggingFaceModel,
    batch: Batch,
    keep: Tensor,
    perturbation: RemovalMethod,
    cache: PerturbationCache | None = None,
) -> Tensor:
    """Return the logits of perturbed versions of a batch; see `ExplainedModel.predict_perturbed`."""
    check_choice("perturbation", perturbation, get_args(RemovalMethod))
    if keep.ndim != 3 or keep.shape[1:] != batch.content.shape:
        raise ExpoundError(f"expected keep of shape [N, {len(batch)}, {batch.length}], got {list(keep.shape)}")
    if keep.dtype != torch.bool:
        return _run_blended(model, batch, keep, perturbation)
    # Checked before hooks are set below, which would see the passes of the check.
    find_failure(model, "padding", Probe(model, batch))
    shares_beginnings = len(keep) > 1 and supports_prefix_sharing(model) and shares_prefixes(model, batch)
    if cache is None:
        cache = PerturbationCache()
    # Explaining several targets asks for the same inputs several times in a row, without computing their keys.
    last = cache.last
    if last is not None and last[0] is batch and last[2] == perturbation and torch.equal(last[1], keep):
        return last[3].clone()
    allowed = (keep | ~batch.removable) & batch.attended
    inputs: PerturbedInputs
    if batch.region_of is not None:
        if perturbation != "remove":
            raise ExpoundError(f"regions of images are filled by perturbation='remove', not {perturbation!r}")
        inputs = RegionRemoval(model, batch, allowed)
    elif perturbation == "remove":
        inputs = Deletion(model, batch, allowed)
    elif perturbation == "attend":
        inputs = Masking(model, batch, allowed)
    else:
        inputs = Replacement(model, batch, allowed, perturbation)
    with torch.no_grad(), model.evaluation_mode(), skip_unread_positions(model, batch):
        answers = _run_distinct(model, inputs, perturbation, cache, shares_beginnings)
    logits = answers.view(*keep.shape[:2], *answers.shape[1:])
    # Copies, so that a caller who writes into its tensors does not change the cache.
    cache.last = (batch, keep.clone(), perturbation, logits)
    return logits.clone()


def _run_blended(model: HuggingFaceModel, batch: Batch, keep: Tensor, perturbation: RemovalMethod) -> Tensor:
    """Return the logits of soft masks in the model's present mode, with a graph to `keep` if it has one."""
    if perturbation == "remove" or perturbation == "attend":  # noqa: PLR1714  # mypy narrows the type by equality only
        raise ExpoundError("a position cannot be removed by half: soft masks need perturbation='mask', 'pad' or 'zero'")
    return torch.stack([model(batch, embeddings=model.blend(batch, weights, perturbation)).logits for weights in keep])


def _run_distinct(
    model: HuggingFaceModel, inputs: PerturbedInputs, perturbation: RemovalMethod, cache: PerturbationCache,
    shares_beginnings: bool,
) -> Tensor:  # fmt: skip
    """Return the logits of every input, [M, C] (spans: [M, 2, L]), and add logits of new inputs to the cache."""
    keys = inputs.compute_keys()
    first, number = _find_distinct(keys)
    # −1 fills keys up, so it is left out: an input has the same name in batches of any length. Names are digests, since
    # keys of thousands of long inputs would take gigabytes.
    names = [blake2b(perturbation.encode() + row[row >= 0].tobytes()).digest() for row in keys[first]]
    new = np.array([index for index, name in enumerate(names) if name not in cache], dtype=np.int64)
    lengths = inputs.lengths.cpu().numpy()[first[new]]
    new = new[np.argsort(-lengths, kind="stable")]
    rows = torch.as_tensor(first[new], device=model.device)
    for index, answer in zip(new, _run_rows(model, inputs, rows, perturbation, shares_beginnings), strict=True):
        cache[names[index]] = answer
    answers = [cache[name] for name in names]
    if model.task.reads_context:
        return _restore_positions([answers[index] for index in number], inputs.places)
    if model.task.is_generated:
        return pad_sequence([answers[index] for index in number], batch_first=True)
    return torch.stack(answers)[torch.as_tensor(number, device=model.device)]


def _run_rows(
    model: HuggingFaceModel, inputs: PerturbedInputs, rows: Tensor, perturbation: RemovalMethod, shares_beginnings: bool
) -> list[Tensor]:
    """Return the logits of the inputs at `rows`, from long to short; texts share beginnings if that saves much.

    Raises:
        ExpoundError: a server is asked for inputs that token ids do not describe.
    """
    if model.is_remote:
        texts = inputs.get_texts(rows)
        if texts is None:
            raise ExpoundError(
                f"a server reads token ids: choose perturbation='remove', 'mask' or 'pad', not {perturbation!r}"
            )
        remote: Any = model
        return list(remote.score_texts(texts))
    budget = get_token_budget(model.device)
    if len(rows) > 1 and shares_beginnings:
        texts = inputs.get_texts(rows)
        if texts:
            answers = run_prefix_tree(model, texts, budget)
            if answers is not None:
                return answers
    sizes = inputs.lengths[rows].tolist()
    answers = []
    # Patches have no attention mask, so images of different lengths cannot share a pass.
    for part in pack(sizes, budget, overhead=0 if model.modality == "image" else None):
        try:
            answers += inputs.run(rows[part])
        except (ExpoundError, torch.cuda.OutOfMemoryError):
            raise
        except MODEL_ERRORS as error:
            # Some models take no text below a length (Funnel's pooling), which removal can reach.
            when = f"on perturbed inputs of {int(inputs.lengths[rows[part]].min())} positions"
            advice = "take perturbation='mask', or a method that removes nothing"
            raise describe_failure(model, when, error, advice) from error
    return answers


def _find_distinct(keys: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the distinct rows, and for every row the place of its equal among them."""
    # Viewed as one opaque value per row, which sorts faster than `np.unique(axis=0)`.
    rows = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.dtype.itemsize * keys.shape[1])))
    _, first, number = np.unique(rows.ravel(), return_index=True, return_inverse=True)
    return first, number


def _restore_positions(answers: list[Tensor], places: Tensor) -> Tensor:
    """Return span logits [M, 2, L] at the positions of the tokens that stayed, and the lowest number at others."""
    grid = answers[0].new_full((len(places), 2, places.shape[1]), torch.finfo(answers[0].dtype).min)
    grid[places[:, None].expand_as(grid)] = torch.cat([answer.flatten() for answer in answers])
    return grid
