"""Perturbed versions of a batch's examples as rows that can be told apart and run in any grouping."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.models.batch import Batch
from exegete.models.encoding.images import select_patches
from exegete.models.perturbation.first_projection import share_first_projection
from exegete.models.perturbation.prefix_tree import PerturbedText

if TYPE_CHECKING:
    from exegete.models.explained import ExplainedModel

MASK_FIELDS = ("response", "readout_mask", "decoder_mask")
"""Fields of a batch that move with its positions."""


class PerturbedInputs(Protocol):
    """M perturbed inputs. `lengths` [M]: their positions without padding; `places` [M, L] bool: which these are."""

    lengths: Tensor
    places: Tensor

    def keys(self) -> NDArray[np.int32]:
        """[M, K] Rows that are equal exactly when the inputs are; -1 fills up, so stripped rows are comparable too."""

    def run(self, rows: Tensor) -> list[Tensor]:
        """Logits of these versions in one pass, each [C] (spans: [2, length], without padding)."""

    def texts(self, rows: Tensor) -> list[PerturbedText] | None:
        """These versions of prompts with responses as ids; None where they are not just that."""


class Deletion:
    """Positions are taken out and the rest moves together; positions are counted anew.

    Where a head over tokens is read, the mask token stays.
    """

    def __init__(self, model: ExplainedModel, batch: Batch, keep: Tensor) -> None:
        self.model, self.batch = model, batch
        flat = keep.flatten(0, 1)
        self.example = torch.arange(len(batch), device=batch.device).repeat(len(keep))
        self.masked = torch.zeros_like(flat) if batch.readout_mask is None else ~flat & batch.readout_mask[self.example]
        flat |= self.masked
        self.emptied = ~(flat & batch.prompt_mask[self.example]).any(1)
        flat[self.emptied, batch.attended.long().argmax(1)[self.example[self.emptied]]] = True
        self.places, self.lengths = flat, flat.sum(1)
        self.width = int(self.lengths.max())
        order = (flat if model.is_decoder else ~flat).to(torch.uint8).argsort(dim=1, stable=True)
        self.columns = order[:, -self.width :] if model.is_decoder else order[:, : self.width]
        self.real = flat.gather(1, self.columns)

    def keys(self) -> NDArray[np.int32]:
        """Token ids and types, where a response is and its foil; for images the picture and the patches that stay."""
        if self.model.modality == "image":
            parts = [_digests(self.batch)[self.example], self._filled(self.columns)]
        else:
            parts = [self._filled(self._gathered(name, slice(None)).long()) for name in self._per_position()]
            parts += [] if self.batch.foil is None else [self.batch.foil[self.example]]
        return torch.cat(parts, 1).to(torch.int32).cpu().numpy()

    def run(self, rows: Tensor) -> list[Tensor]:
        """One pass over the chosen versions, as short as their longest."""
        longest = int(self.lengths[rows].max())
        columns = slice(self.width - longest, None) if self.model.is_decoder else slice(0, longest)
        if self.model.modality == "image":
            chosen = self.batch.select(self.example[rows])
            with select_patches(self.model.model, self.columns[rows, columns], chosen.length):
                return _answers(self.model, chosen)
        real = self.real[rows, columns]
        inputs = {name: self._gathered(name, rows)[:, columns] for name in self._per_position()}
        marks: dict[str, Any] = {name: inputs.pop(name) for name in MASK_FIELDS if name in inputs}
        inputs["attention_mask"] = real.long()
        nowhere = torch.full_like(self.columns[rows, columns], -1)
        foil = None if self.batch.foil is None else self.batch.foil[self.example[rows]]
        return _answers(self.model, Batch(inputs, real, real, nowhere, foil=foil, **marks))

    def texts(self, rows: Tensor) -> list[PerturbedText] | None:
        """Ids of what stays."""
        ids, response = (self._gathered(name, rows) for name in ("input_ids", "response"))
        return _texts(self.batch, self.example[rows], ids, self.real[rows], response)

    def _per_position(self) -> list[str]:
        more = [name for name in MASK_FIELDS if getattr(self.batch, name) is not None]
        return [name for name in ("input_ids", "token_type_ids") if name in self.batch.inputs] + more

    def _gathered(self, name: str, rows: Tensor | slice) -> Tensor:
        """[m, width] An input at the positions that stay; where nothing stays but a response, one mask token."""
        place = (self.example[rows, None], self.columns[rows])
        if name in MASK_FIELDS:
            mark: Tensor = getattr(self.batch, name)[place] & self.real[rows]
            return mark
        values = self.batch.inputs[name][place]
        if name == "input_ids":
            values = values.masked_fill(~self.real[rows], self.model.pad_id)
            if self.batch.readout_mask is not None:
                hidden = self.masked[rows].gather(1, self.columns[rows])
                values = values.masked_fill(hidden, self.model.mask_id) if hidden.any() else values
            if self.emptied.any():
                empty = self.emptied[rows, None] & self.real[rows] & self.batch.prompt_mask[place]
                values = values.masked_fill(empty, self.model.mask_id)
        return values

    def _filled(self, values: Tensor) -> Tensor:
        return values.masked_fill(~self.real, -1)


class Replacement:
    """Positions stay where they are, and a reference embedding takes the place of what is not kept."""

    def __init__(self, model: ExplainedModel, batch: Batch, keep: Tensor, how: Literal["mask", "pad", "zero"]) -> None:
        self.model, self.batch, self.how = model, batch, how
        self.keep = keep.flatten(0, 1)
        self.example = torch.arange(len(batch), device=batch.device).repeat(len(keep))
        self.places = batch.attended[self.example]
        self.lengths = self.places.sum(1)

    def keys(self) -> NDArray[np.int32]:
        """Which input it is, and which of its positions stay."""
        attended = self.batch.attended
        if self.model.modality == "image":
            identity = _digests(self.batch)
        else:
            names = [n for n in ("input_ids", "token_type_ids", "position_ids") if n in self.batch.inputs]
            found = [self.batch.inputs[name].masked_fill(~attended, -1) for name in names]
            marks = [each for name in MASK_FIELDS if (each := getattr(self.batch, name)) is not None]
            found += [each.long().masked_fill(~attended, -1) for each in marks]
            identity = torch.cat([*found, *([] if self.batch.foil is None else [self.batch.foil])], 1)
        kept = self.keep.long().masked_fill(~attended[self.example], -1)
        return torch.cat([identity[self.example], kept], 1).to(torch.int32).cpu().numpy()

    def texts(self, rows: Tensor) -> list[PerturbedText] | None:
        """Ids, a token in the place of each that is not kept, where positions are what they are by themselves."""
        batch, example = self.batch, self.example[rows]
        positions = batch.inputs.get("position_ids")
        own = (batch.attended.long().cumsum(1) - 1).clamp(min=0)
        if self.how == "zero" or not (positions is None or torch.equal(positions, own)):
            return None
        assert batch.response is not None
        gone = batch.removable[example] & ~self.keep[rows]
        token = self.model.mask_id if self.how == "mask" else self.model.pad_id
        ids = batch.inputs["input_ids"][example].masked_fill(gone, token)
        return _texts(batch, example, ids, batch.attended[example], batch.response[example])

    def run(self, rows: Tensor) -> list[Tensor]:
        """One pass over the chosen versions, without columns that none of them uses."""
        chosen, columns = self.batch.select(self.example[rows]).trim_padding()
        keep = self.keep[rows, columns]
        places = self.example[rows, None] * chosen.length + torch.arange(chosen.length, device=keep.device)
        embeddings = self.model.blend(chosen, keep, self.how)
        with share_first_projection(self.model, 2 * places + keep):
            return _answers(self.model, chosen, embeddings)


def _texts(batch: Batch, example: Tensor, ids: Tensor, real: Tensor, response: Tensor) -> list[PerturbedText] | None:
    """Versions from ids [m, K] at `real` positions; None where another text follows the response."""
    last = real.long().cumsum(1).argmax(1, keepdim=True)
    if not response.gather(1, last).all():
        return None
    foils = None if batch.foil is None else batch.foil[example]
    return [
        PerturbedText(ids[row, real[row]], int(response[row].sum()), None if foils is None else foils[row])
        for row in range(len(ids))
    ]


def _answers(model: ExplainedModel, batch: Batch, embeddings: Tensor | None = None) -> list[Tensor]:
    """One pass; a span's answer without padding, so that it means the same in any batch."""
    logits = model(batch, embeddings=embeddings).logits
    if model.task.name != "span":
        return list(logits)
    return [answer[:, real] for answer, real in zip(logits, batch.attended, strict=True)]


def _digests(batch: Batch) -> Tensor:
    """[B, 4] Four non-negative numbers that tell pictures apart."""
    pixels = batch.inputs["pixel_values"].float().cpu().numpy()
    digests = [np.frombuffer(blake2b(row.tobytes(), digest_size=16).digest(), np.int32) & 0x7FFFFFFF for row in pixels]
    return torch.from_numpy(np.stack(digests)).to(batch.device)
