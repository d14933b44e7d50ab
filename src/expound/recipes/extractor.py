"""Rationale extractors: a selection of words, and the prediction from them, trained end to end."""

from __future__ import annotations

from typing import Annotated

from expound.explainers.learned.rationale_extractor import Gate
from expound.objectives import CrossEntropy, SelectedWordsLoss
from expound.recipes.base import Effect, Recipe

EQUATION = r"\text{CE}(y \mid x) + \mathbb{E}_z \, \text{CE}(y \mid z \odot x) + \ldots"
USE = "You want a model whose predictions need few words of a text, and no human rationales are there."
AVOID = "The model may not change, or the rationale must be what people would mark: er_joint."
DEPARTURES = (
    "One encoder selects and predicts; the papers' selector and classifier are two networks, and recurrent ones.",
    "The model also learns from whole texts, which it must read to select; both losses have the same weight.",
    "Gates are of tokens, and the selected embeddings enter an encoder that still sees the positions of the others.",
    "The distance of the expected share from a fraction is a term of the loss; Bastings et al. have a Lagrangian.",
    "Lei et al. sample once with a running baseline; here two samples are each other's baseline.",
)


def extractor(
    gate: Annotated[
        Gate,
        "Random gates of the tokens: bernoulli with REINFORCE (Lei et al. 2016) or hardkuma (Bastings et al. 2019).",
    ] = "bernoulli",
    fraction: Annotated[float, "Share of a text's tokens that should be selected."] = 0.2,
    weight: Annotated[float, "Weight of the loss on selected tokens.", {"min": 0}] = 1.0,
    sparsity_weight: Annotated[
        float, "Weight of the distance of the expected share from the fraction.", {"min": 0}
    ] = 1.0,
    sparsity_warmup: Annotated[
        int, "Steps over which this weight grows from 0; without them all gates may close alike.", {"min": 0}
    ] = 150,
    continuity_weight: Annotated[float, "Weight of changes between neighbors, per token.", {"min": 0}] = 0.0,
) -> Recipe:
    """Train a model to select the words from which it predicts, without human rationales (rationale extraction).

    The folder has the model, and beside it the explainer rationale_extractor:OUTPUT, whose scores are the
    probabilities of selection. Gates learn slowly: after the default steps on 1,000 sentences of SST, the model was
    right on .75 of 300 others from a fifth of the words, on .68 from random words, on .83 from words by decompx_linear
    and on .83 from all words (one seed). Hardkuma gates selected no better than random ones. Two epochs of
    200 film reviews of 512 tokens teach no selection, not even a model that knows the task: words that it selects have
    a sufficiency of .31, random ones .21 (lower is better).

    Example: expound train extractor --model bert-base-uncased --data sst:data/sst --output-dir runs/extractor
    """
    return Recipe(
        name="extractor",
        paper="Bastings et al. 2019",
        objectives=(
            CrossEntropy(),
            SelectedWordsLoss(
                weight=weight,
                fraction=fraction,
                sparsity_weight=sparsity_weight,
                sparsity_warmup=sparsity_warmup,
                continuity_weight=continuity_weight,
                gate=gate,
            ),
        ),
        arguments={
            "learning_rate": 1e-4,
            "num_train_epochs": 6,
            "per_device_train_batch_size": 16,
            "metric_for_best_model": "selected_words",
        },
        effect=Effect("aopc_sufficiency", "rationale_extractor:{run}", "random"),
        departures=DEPARTURES,
    )
