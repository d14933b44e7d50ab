"""Training methods of papers, one short file each. A new one is its function in a file and a line in `registry.py`."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.recipes.aml import AmlRecipe
    from exegete.recipes.at2 import At2Recipe
    from exegete.recipes.base import Recipe, RecipeFactory
    from exegete.recipes.cite import CiteRecipe
    from exegete.recipes.fresh import FreshRecipe, extract_rationales
    from exegete.recipes.ivra import IvraRecipe
    from exegete.recipes.lora import LoraRecipe
    from exegete.recipes.random_labels import RandomLabelsRecipe
    from exegete.recipes.registry import RECIPES, list_recipes, recipe
    from exegete.recipes.smat import SmatRecipe
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "RECIPES", "AmlRecipe", "At2Recipe", "CiteRecipe", "FreshRecipe", "IvraRecipe", "LoraRecipe",
    "RandomLabelsRecipe", "Recipe", "RecipeFactory", "SmatRecipe", "extract_rationales", "list_recipes", "recipe"
]  # fmt: skip
