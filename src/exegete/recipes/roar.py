"""Remove and retrain: what can still be learned when the words that an explanation chose are gone?"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from exegete.explainers import explainer
from exegete.models import load
from exegete.recipes.base import Recipe
from exegete.recipes.baseline import baseline
from exegete.recipes.fresh import FreshRecipe


def roar(
    explainer_id: Annotated[str, "The method that chooses; any id of `exegete methods`."] = "random",
    ratio: Annotated[float, "Share of a text's words that is taken away, rounded up; one word always stays."] = 0.5,
    support: Annotated[
        str | None, "Folder of the fine-tuned model that is explained. Default: train one first."
    ] = None,
) -> Recipe:
    """Remove and retrain (ROAR): train a model on texts without the words that an explanation puts first.

    The worse it does on such texts, the more of the evidence the explanation found; --explainer random is the ceiling.

    Example: exegete train roar --explainer occlusion --ratio 0.5 --support runs/baseline --model bert-base-uncased
    --data sst:data/sst --output-dir runs/roar
    """
    return FreshRecipe(
        **vars(replace(baseline(), name="roar", paper="Hooker et al. 2019")),
        explainer=explainer(explainer_id),
        ratio=ratio,
        support=None if support is None else load(support),
        rest=True,
    )
