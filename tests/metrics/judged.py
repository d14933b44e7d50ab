"""Batches with attributions to judge, and faithfulness computed one example and one position at a time."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch

import families
from expound.models import Batch, ExplainedModel

PAIRS = [("who is holding packages ?", families.SENTENCES[2]), ("what is dull ?", families.SENTENCES[1])]


@functools.cache
def model_of(family, head="SequenceClassification", **changes):
    changes |= {"num_labels": 2} if head == "QuestionAnswering" else {}
    return ExplainedModel(families.tiny(family, head, **changes), families.processor(family))


def inputs_of(family, head="SequenceClassification"):
    return PAIRS if head == "QuestionAnswering" else families.examples(family)


def attribution_for(batch, seed=0):
    """Scores with many ties, zero outside content."""
    noise = torch.randn(batch.content.shape, generator=torch.Generator().manual_seed(seed))
    return (noise * 2).round().div(2) * batch.content


def top(scores, content, k, rounding, length):
    """The top positions of one example by falling score; among equal scores, the first ones."""
    n = len(content)
    size = {"floor": math.floor(n * k + 1e-9), "ceil": math.ceil(n * k - 1e-9), "er": int(length * k + 1e-9)}[rounding]
    size = size if rounding == "floor" else max(1, size)
    return sorted(content, key=lambda position: (-scores[position], position))[:size]


class OneByOne:
    """The probability of one example's target after positions were really removed or overwritten."""

    def __init__(self, model, batch, row, target, perturbation):
        self.model, self.perturbation = model, perturbation
        self.batch, self.row = batch, row
        self.target = target[row].tolist()
        self.attended = batch.attended[row].nonzero().flatten().tolist()
        self.content = batch.content[row].nonzero().flatten().tolist()

    def __call__(self, erased):
        erased = set(erased)
        if self.model.modality == "image":
            return self.answer(self.picture(erased))
        ids = {position: int(self.batch.inputs["input_ids"][self.row, position]) for position in self.attended}
        kinds = self.batch.inputs.get("token_type_ids")
        if self.perturbation == "remove":
            ids = {position: token for position, token in ids.items() if position not in erased}
            ids = ids or {self.attended[0]: self.model.mask_id}
        else:
            token = self.model.mask_id if self.perturbation == "mask" else self.model.pad_id
            ids = {position: token if position in erased else old for position, old in ids.items()}
        types = None if kinds is None else torch.tensor([[int(kinds[self.row, position]) for position in ids]])
        return self.answer(Batch.from_ids(torch.tensor([list(ids.values())]), token_type_ids=types), list(ids))

    def answer(self, batch, positions=()):
        probabilities = self.model.probabilities(batch)[0]
        if self.model.task.name != "span":
            return float(probabilities[self.target])
        if not set(self.target) <= set(positions):
            return 0.0
        start, end = (positions.index(place) for place in self.target)
        return float(probabilities[0, start] * probabilities[1, end])

    def picture(self, erased):
        """Blank pixels where a patch is erased; position 0 is the class token."""
        pixels = self.batch.inputs["pixel_values"][self.row].clone()
        size, across = self.model.config.patch_size, self.batch.image_shape[1]
        for patch in (position - 1 for position in erased):
            down, right = patch // across * size, patch % across * size
            pixels[:, down : down + size, right : right + size] = 0
        return replace(self.batch.select([self.row]), inputs={"pixel_values": pixels[None]})
