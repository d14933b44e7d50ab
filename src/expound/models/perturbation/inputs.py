"""Perturbed versions of a batch's examples, which can be compared by keys and run in any grouping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from expound.errors import ExpoundError
from expound.models.batch import Batch
from expound.models.encoding.images import select_patches
from expound.models.hugging_face import HuggingFaceModel
from expound.models.perturbation.prefix_tree import PerturbedText
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
