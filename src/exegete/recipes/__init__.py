"""Training methods of papers, one short file each. A new one is a file with its function and a line in `RECIPES`."""

from __future__ import annotations

from exegete.recipes.aml import Aml, aml
from exegete.recipes.base import Factory, Recipe
from exegete.recipes.baseline import baseline
from exegete.recipes.er_bound import er_bound, find_bounds
from exegete.recipes.er_constrained import er_constrained
from exegete.recipes.er_joint import er_joint
from exegete.recipes.fresh import Fresh, fresh, rationales
from exegete.recipes.ivra import ivra
from exegete.recipes.regex import regex
from exegete.recipes.smat import smat

RECIPES: dict[str, Factory] = {
    factory.__name__: factory
    for factory in (
        baseline,
        er_joint,
        er_constrained,
        er_bound,
        fresh,
        regex,
        smat,
        ivra,
        aml,
    )
}

__all__ = ["RECIPES", "Aml", "Factory", "Fresh", "Recipe", "find_bounds", "rationales"]
