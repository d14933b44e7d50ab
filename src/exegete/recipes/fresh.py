"""Faithful rationale extraction: one model's explanations choose the words that another model sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from datasets import Dataset
from numpy.typing import ArrayLike

from exegete.errors import ExegeteError
from exegete.explainers import Explainer, attribute, explainer
from exegete.models import ExplainedModel, load
from exegete.recipes.base import Recipe
from exegete.recipes.baseline import train_companion
from exegete.reports.attributions import Attribution
from exegete.training import RunOptions, TrainResult
from exegete.training.loop.starting_model import Source

COLUMNS = ("text", "text_pair", "label")
DEPARTURES = ("No tagger is trained on the extracted rationales.", "Words are separated by white space.")


@dataclass(frozen=True, kw_only=True)
class FreshRecipe(Recipe):
    """Select, then predict (Jain et al. 2020).

    `explainer` ranks the words of every text by what the support model bases its prediction on; the best `ratio` of
    them, in the order of the text, is all that the predictor ever sees, in training and at test time. `support`: that
    model; without one, a baseline is trained first, in a folder beside the output folder. `rest`: the predictor sees
    all words but these instead.
    """

    explainer: Explainer
    ratio: float = 0.2
    contiguous: bool = False
    support: ExplainedModel | None = None
    rest: bool = False

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Trains the predictor on rationales; its dev figures are on rationales too."""
        support = self.support or train_companion(folder, "support", model, train, dev, options)
        cut = [
            extract_rationales(support, data, self.explainer, self.ratio, self.contiguous, self.rest)
            for data in (train, dev)
        ]
        return super().run(model, cut[0], cut[1], folder, options)


def fresh(
    explainer_id: Annotated[str, "The method that chooses; any id of `exegete methods`."] = "attention_last",
    ratio: Annotated[float, "Share of a text's words that is kept, rounded up."] = 0.2,
    contiguous: Annotated[
        bool, "Keep one stretch of words, the one with the highest sum, instead of the best words."
    ] = False,
    support: Annotated[
        str | None, "Folder of the fine-tuned model that is explained. Default: train one first."
    ] = None,
) -> Recipe:
    """Select, then predict: train a model that sees nothing but the words that an explanation chose.

    How well it does says how much of the evidence the explanation found; --explainer random is the floor.

    Example: exegete train fresh --explainer attention_last --ratio 0.2 --contiguous --model bert-base-uncased
    --data sst:data/sst --output-dir runs/fresh
    """
    return FreshRecipe(
        name="fresh",
        paper="Jain et al. 2020",
        explainer=explainer(explainer_id),
        ratio=ratio,
        contiguous=contiguous,
        support=None if support is None else load(support),
        arguments={
            "learning_rate": 2e-5,
            "num_train_epochs": 20,
            "max_grad_norm": 5.0,
            "metric_for_best_model": "f1_macro",
        },
        patience=10,
        departures=DEPARTURES,
    )


def extract_rationales(
    model: ExplainedModel,
    data: Dataset,
    method: str | Explainer = "attention_last",
    ratio: float = 0.2,
    contiguous: bool = False,
    rest: bool = False,
    **options: Any,
) -> Dataset:
    """The data with nothing but the words of each text that an explanation of the model's prediction puts first.

    Args:
        model: what is explained.
        data: texts or pairs in canonical form; rationales of people are left out.
        method: explains; scores are compared with their sign.
        ratio: of all words of an example, rounded up; a pair's words are ranked together.
        contiguous: one stretch instead, of the same length, with the highest sum of scores.
        rest: take these words away and keep the others instead; where there are none, the lowest.
        options: of `exegete.attribute`, as `batch_size`.

    Raises:
        ExegeteError: a ratio outside (0, 1], or images.
    """
    if not 0 < ratio <= 1:
        raise ExegeteError(f"expected a ratio above 0 and up to 1, as 0.2 for 20 %, got {ratio}")
    if "text" not in data.column_names:
        raise ExegeteError("only texts can be cut down to rationales: the data has no column 'text'")
    kept = data.select_columns([name for name in COLUMNS if name in data.column_names])
    texts = [_select_texts(item, ratio, contiguous, rest) for item in attribute(model, list(kept), method, **options)]
    for side, name in enumerate(name for name in ("text", "text_pair") if name in kept.column_names):
        column = [pair[side] for pair in texts]
        kept = kept.remove_columns(name).add_column(name, column, feature=data.features[name])
    return kept


def _select_texts(item: Attribution, ratio: float, contiguous: bool, rest: bool) -> list[str]:
    chosen = select_words(item.word_scores, ratio, contiguous)
    if rest:
        gone = set(chosen)
        chosen = [index for index in range(len(item.words)) if index not in gone] or [int(item.word_scores.argmin())]
    sides: list[list[str]] = [[] for _ in item.texts]
    for index in chosen:
        sides[item.word_spans[index][0]].append(item.words[index])
    return [" ".join(words) for words in sides]


def select_words(scores: ArrayLike, ratio: float, contiguous: bool = False) -> Sequence[int]:
    """Indices, rising, of the ⌈ratio · n⌉ highest scores, or of the stretch of that length with the highest sum.

    Equal scores and sums: the first in the text.
    """
    values = np.asarray(scores, dtype=np.float64)
    size = math.ceil(round(ratio * len(values), 9))
    if contiguous:
        sums = np.convolve(values, np.ones(size), mode="valid") if size else np.zeros(1)
        start = int(sums.argmax())
        return range(start, start + size)
    best: list[int] = np.sort(np.argsort(-values, kind="stable")[:size]).tolist()
    return best
