"""Runs a model on perturbed inputs, given as keep-masks.

The cost is that of the distinct inputs without padding: identical inputs are run once, the rest are sorted by length
and packed into passes of a limited number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from expound.errors import ExpoundError, unknown
from expound.models.batch import Batch, get_token_budget, pack
from expound.models.encoding.images import select_patches
from expound.models.hugging_face import MODEL_ERRORS, HuggingFaceModel, Probe, describe_failure, find_failure
from expound.models.passes.hooks import skip_unread_positions
from expound.models.perturbation.prefix_tree import (
    PerturbedText,
    run_prefix_tree,
    run_without_cached,
    shares_prefixes,
    supports_prefix_sharing,
)
from expound.models.regions import fill_regions

MASK_FIELDS = ("response", "readout_mask", "decoder_mask")
"""Fields of a batch that move with its positions."""


class PerturbedInputs(Protocol):
    """M perturbed inputs. `lengths` [M]: how many positions each has; `places` [M, L] bool: which positions."""

    lengths: Tensor
    places: Tensor

    def compute_keys(self) -> NDArray[np.int32]:
        """Return keys [M, K] that are equal exactly if the inputs are, filled up by −1."""

    def run(self, rows: Tensor) -> list[Tensor]:
        """Return the logits of these inputs by one pass, each [C] (spans: [2, length], without padding)."""

    def get_texts(self, rows: Tensor) -> list[PerturbedText] | None:
        """Return these inputs as prompts with responses; None if ids alone do not describe them."""


class Deletion:
    """Inputs without the positions that are not kept; the others move together and are numbered anew.

    Where a head over tokens is read, the mask token stays.
    """

    def __init__(self, model: HuggingFaceModel, batch: Batch, keep: Tensor) -> None:
        self.model, self.batch = model, batch
        kept = keep.flatten(0, 1)
        self.example = torch.arange(len(batch), device=batch.device).repeat(len(keep))
        # A head over tokens needs a token where it reads: a removed word leaves the mask token in its place.
        self.masked = torch.zeros_like(kept) if batch.readout_mask is None else ~kept & batch.readout_mask[self.example]
        kept |= self.masked
        # An input without any token cannot be run: the first position stays, as one mask token.
        self.emptied = ~(kept & batch.prompt_mask[self.example]).any(1)
        kept[self.emptied, batch.attended.long().argmax(1)[self.example[self.emptied]]] = True
        self.places, self.lengths = kept, kept.sum(1)
        self.width = int(self.lengths.max())
        # A stable sort moves the kept positions to one side without changing their order. bool cannot be sorted on
        # all devices.
        order = (kept if model.is_decoder else ~kept).to(torch.uint8).argsort(dim=1, stable=True)
        self.columns = order[:, -self.width :] if model.is_decoder else order[:, : self.width]
        self.real = kept.gather(1, self.columns)

    def compute_keys(self) -> NDArray[np.int32]:
        """Return token ids, types, masks and foils of each input; of images the picture and the patches that stay."""
        if self.model.modality == "image":
            parts = [_digest_images(self.batch)[self.example], self.columns.masked_fill(~self.real, -1)]
        else:
            names = self._get_moving_fields()
            parts = [self._gather(name, slice(None)).long().masked_fill(~self.real, -1) for name in names]
            if self.batch.foil is not None:
                parts.append(self.batch.foil[self.example])
        return torch.cat(parts, 1).to(torch.int32).cpu().numpy()

    def run(self, rows: Tensor) -> list[Tensor]:
        """Run one pass over these inputs, as short as the longest of them."""
        longest = int(self.lengths[rows].max())
        columns = slice(self.width - longest, None) if self.model.is_decoder else slice(0, longest)
        if self.model.modality == "image":
            images = self.batch.select(self.example[rows])
            with select_patches(self.model.model, self.columns[rows, columns], images.length):
                return _run_batch(self.model, images)
        real = self.real[rows, columns]
        inputs = {name: self._gather(name, rows)[:, columns] for name in self._get_moving_fields()}
        masks: dict[str, Any] = {name: inputs.pop(name) for name in MASK_FIELDS if name in inputs}
        inputs["attention_mask"] = real.long()
        no_words = torch.full_like(self.columns[rows, columns], -1)
        foil = None if self.batch.foil is None else self.batch.foil[self.example[rows]]
        return _run_batch(
            self.model, Batch(inputs, real, real, no_words, foil=foil, images=self.get_images(rows), **masks)
        )

    def get_images(self, rows: Tensor) -> tuple[tuple[Image.Image, ...], ...] | None:
        """Return the images of these inputs; None without any."""
        return None

    def get_texts(self, rows: Tensor) -> list[PerturbedText] | None:
        """Return the ids of what stays; None if something follows the response."""
        ids, response = self._gather("input_ids", rows), self._gather("response", rows)
        return _make_texts(self.batch, self.example[rows], ids, self.real[rows], response)

    def _get_moving_fields(self) -> list[str]:
        # Position ids are left out: the shortened input gets new ones.
        inputs = [name for name in ("input_ids", "token_type_ids") if name in self.batch.inputs]
        return inputs + [name for name in MASK_FIELDS if getattr(self.batch, name) is not None]

    def _gather(self, name: str, rows: Tensor | slice) -> Tensor:
        """Return a field [m, width] at the positions that stay; an emptied prompt is one mask token."""
        place = (self.example[rows, None], self.columns[rows])
        if name in MASK_FIELDS:
            mask: Tensor = getattr(self.batch, name)[place] & self.real[rows]
            return mask
        values = self.batch.inputs[name][place]
        if name != "input_ids":
            return values
        values = values.masked_fill(~self.real[rows], self.model.pad_id)
        # `mask_id` raises for models without a mask token, so it is asked only if one is needed.
        if self.batch.readout_mask is not None:
            masked = self.masked[rows].gather(1, self.columns[rows])
            if masked.any():
                values = values.masked_fill(masked, self.model.mask_id)
        if self.emptied.any():
            emptied = self.emptied[rows, None] & self.real[rows] & self.batch.prompt_mask[place]
            values = values.masked_fill(emptied, self.model.mask_id)
        return values


class RegionRemoval(Deletion):
    """Inputs without some of their text, and with some regions of their images filled; image tokens all stay.

    Raises:
        ExpoundError: only a part of a region is removed.
    """

    def __init__(self, model: HuggingFaceModel, batch: Batch, keep: Tensor) -> None:
        assert batch.region_of is not None
        is_region = batch.region_of >= 0
        super().__init__(model, batch, keep | is_region)
        region_of, count = batch.region_of[self.example], 1 + int(batch.region_of.max())
        # Column 0 is for positions outside of images.
        tokens = torch.zeros(len(region_of), count + 1, dtype=torch.long, device=batch.device)
        gone = tokens.scatter_add(1, region_of + 1, (~keep.flatten(0, 1)).long())[:, 1:]
        self.filled = gone > 0
        if (self.filled & (gone < tokens.scatter_add(1, region_of + 1, torch.ones_like(region_of))[:, 1:])).any():
            raise ExpoundError("regions of an image are removed as a whole: choose unit='word', 'sentence' or 'source'")

    def compute_keys(self) -> NDArray[np.int32]:
        """Return the keys of the text, the images, and the regions that are filled."""
        digests = torch.stack([digest_pictures(images) for images in self.batch.images or ()]).to(self.batch.device)
        own = torch.cat([digests[self.example], self.filled.long()], 1).to(torch.int32).cpu().numpy()
        return np.concatenate([own, super().compute_keys()], 1)

    def run(self, rows: Tensor) -> list[Tensor]:
        """Run these inputs one by one: images may have other sizes, and models count their positions themselves."""
        return [super(RegionRemoval, self).run(row)[0] for row in rows.split(1)]

    def get_texts(self, rows: Tensor) -> list[PerturbedText] | None:
        """Return None: ids alone do not say what the images show."""
        return None

    def get_images(self, rows: Tensor) -> tuple[tuple[Image.Image, ...], ...] | None:
        """Return the images with their removed regions filled."""
        assert self.batch.images is not None
        assert self.batch.regions is not None
        filled = []
        for row in rows.tolist():
            example = int(self.example[row])
            gone = [region for number, region in enumerate(self.batch.regions[example]) if self.filled[row, number]]
            images = self.batch.images[example]
            filled.append(tuple(fill_regions(image, number, gone) for number, image in enumerate(images)))
        return tuple(filled)


def digest_pictures(images: Sequence[Image.Image]) -> Tensor:
    """Return four non-negative numbers that identify some images."""
    digest = blake2b(digest_size=16)
    for image in images:
        digest.update(f"{image.size}".encode() + image.tobytes())
    return torch.from_numpy(np.frombuffer(digest.digest(), np.int32) & 0x7FFFFFFF)


class Replacement:
    """Inputs whose positions all stay, with a reference embedding in place of what is not kept."""

    def __init__(
        self,
        model: HuggingFaceModel,
        batch: Batch,
        keep: Tensor,
        perturbation: Literal["mask", "pad", "zero", "attend"],
    ) -> None:
        self.model, self.batch, self.perturbation = model, batch, perturbation
        self.keep = keep.flatten(0, 1)
        self.example = torch.arange(len(batch), device=batch.device).repeat(len(keep))
        self.places = batch.attended[self.example]
        self.lengths = self.places.sum(1)

    def compute_keys(self) -> NDArray[np.int32]:
        """Return each input's example, by its content, and the positions that stay."""
        attended = self.batch.attended
        if self.model.modality == "image":
            identity = _digest_images(self.batch)
        else:
            names = ("input_ids", "token_type_ids", "position_ids")
            fields = [self.batch.inputs[name] for name in names if name in self.batch.inputs]
            masks = [getattr(self.batch, name) for name in MASK_FIELDS]
            fields += [mask.long() for mask in masks if mask is not None]
            fields = [field.masked_fill(~attended, -1) for field in fields]
            if self.batch.foil is not None:
                fields.append(self.batch.foil)
            identity = torch.cat(fields, 1)
        kept = self.keep.long().masked_fill(~attended[self.example], -1)
        return torch.cat([identity[self.example], kept], 1).to(torch.int32).cpu().numpy()

    def get_texts(self, rows: Tensor) -> list[PerturbedText] | None:
        """Return the ids with the replacing token; None for zero vectors, or for position ids of the user's own."""
        batch, example = self.batch, self.example[rows]
        positions = batch.inputs.get("position_ids")
        default = (batch.attended.long().cumsum(1) - 1).clamp(min=0) + self.model.first_position
        if self.perturbation == "zero" or not (positions is None or torch.equal(positions, default)):
            return None
        assert batch.response is not None
        replaced = batch.removable[example] & ~self.keep[rows]
        token = self.model.mask_id if self.perturbation == "mask" else self.model.pad_id
        ids = batch.inputs["input_ids"][example].masked_fill(replaced, token)
        return _make_texts(batch, example, ids, batch.attended[example], batch.response[example])

    def run(self, rows: Tensor) -> list[Tensor]:
        """Run one pass over these inputs, without columns that are padding in all of them."""
        batch, columns = self.batch.select(self.example[rows]).trim_padding()
        keep = self.keep[rows, columns]
        assert self.perturbation != "attend"
        embeddings = self.model.blend(batch, keep, self.perturbation)
        return _run_batch(self.model, batch, embeddings)


class Masking(Replacement):
    """Inputs whose positions all stay in their places, but are not attended to if they are not kept (AT2).

    Raises:
        ExpoundError: a model without an attention mask over one row of text; an input with nothing to attend to.
    """

    def __init__(self, model: HuggingFaceModel, batch: Batch, keep: Tensor) -> None:
        super().__init__(model, model.add_position_ids(batch), keep, "attend")
        # Encoder-decoders and pairs of embeddings read from the mask which positions belong to which stack or text.
        is_one_text = not (model.is_encoder_decoder or hasattr(model.model, "similarity")) and model.modality == "text"
        if "attention_mask" not in model.forward_parameters or not is_one_text:
            raise ExpoundError(
                "expected a model that reads one row of text with an attention mask, for perturbation='attend': use "
                "another one, such as 'remove' or 'mask'"
            )
        if not (self.keep & batch.prompt_mask[self.example]).any(1).all():
            raise ExpoundError(
                "expected a position to attend to in every input, but one has lost all: use 'mask', or special tokens"
            )

    def get_texts(self, rows: Tensor) -> list[PerturbedText] | None:
        """Return None: ids alone do not say what is attended to."""
        return None

    def run(self, rows: Tensor) -> list[Tensor]:
        """Run one pass over these inputs; position ids count in the whole input."""
        batch, columns = self.batch.select(self.example[rows]).trim_padding()
        mask = {"attention_mask": self.keep[rows, columns].long()}
        return _run_batch(self.model, replace(batch, inputs=batch.inputs | mask))


def _make_texts(
    batch: Batch, example: Tensor, ids: Tensor, real: Tensor, response: Tensor
) -> list[PerturbedText] | None:
    """Return texts from ids [m, K] at `real` positions; None if another token follows a response."""
    last = real.long().cumsum(1).argmax(1, keepdim=True)
    if not response.gather(1, last).all():
        return None
    foils = None if batch.foil is None else batch.foil[example]
    texts: list[PerturbedText] = []
    for row in range(len(ids)):
        foil = None if foils is None else foils[row]
        texts.append(PerturbedText(ids[row, real[row]], int(response[row].sum()), foil))
    return texts


def _run_batch(model: HuggingFaceModel, batch: Batch, embeddings: Tensor | None = None) -> list[Tensor]:
    """Return the logits of each example; a span's without padding, so that they can be reused in any batch."""
    try:
        logits = model(batch, embeddings=embeddings).logits
    except ExpoundError:
        raise
    except (IndexError, RuntimeError, ValueError) as error:
        # Other errors are passed on: they may be the user's own, such as those of a hook.
        if batch.length > 2:
            raise
        raise ExpoundError(
            f"{type(model.model).__name__} fails on a perturbed input of {batch.length} positions "
            f"({str(error).strip().splitlines()[0]:.120}): perturb it in another way, as perturbation='mask'"
        ) from error
    return [model.task.select_positions(answer, real) for answer, real in zip(logits, batch.attended, strict=True)]


def _digest_images(batch: Batch) -> Tensor:
    """Return four non-negative numbers [B, 4] that identify each image."""
    pixels = batch.inputs["pixel_values"].float().cpu().numpy()
    # The sign bit is cleared, because −1 fills keys up.
    digests = [np.frombuffer(blake2b(row.tobytes(), digest_size=16).digest(), np.int32) & 0x7FFFFFFF for row in pixels]
    return torch.from_numpy(np.stack(digests)).to(batch.device)


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
    if perturbation not in get_args(RemovalMethod):
        raise unknown("perturbation", perturbation, get_args(RemovalMethod))
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


def run_with_hidden_units(model: HuggingFaceModel, batch: Batch, units: Sequence[Tensor]) -> Tensor:
    """Return the logits [U, 1, R, 2] of one example if question and answer do not see the keys and values of a unit.

    It costs one pass, and for each of U units (masks [L]) the tokens from the last unit on.

    Raises:
        ExpoundError: a model without a plain cache of keys and values, a foil, or images.
    """
    tables: list[Tensor] | None = None
    is_plain = batch.foil is None and batch.images is None and batch.region_of is None and not model.is_remote
    if is_plain and supports_prefix_sharing(model) and shares_prefixes(model, batch):
        texts = Deletion(model, batch, batch.attended[None]).get_texts(torch.zeros(1, dtype=torch.long))
        if texts is not None:
            with torch.no_grad(), model.evaluation_mode(), skip_unread_positions(model, batch):
                tables = run_without_cached(model, texts[0], [unit[batch.attended[0]] for unit in units])
    if tables is None:
        raise ExpoundError("only texts of a causal language model with a plain key/value cache are searched by "
                           "search='cache': take search='tree'")  # fmt: skip
    return torch.stack(tables)[:, None]


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
