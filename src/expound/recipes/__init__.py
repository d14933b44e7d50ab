"""Training methods of papers, one short file each. A new one is its function in a file and a line in `registry.py`."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.recipes.aml import AmlRecipe
    from expound.recipes.at2 import At2Recipe
    from expound.recipes.base import Recipe, RecipeFactory
    from expound.recipes.cite import CiteRecipe
    from expound.recipes.fresh import FreshRecipe, extract_rationales
    from expound.recipes.ivra import IvraRecipe
    from expound.recipes.lora import LoraRecipe
    from expound.recipes.random_labels import RandomLabelsRecipe
    from expound.recipes.registry import RECIPES, list_recipes, recipe
    from expound.recipes.smat import SmatRecipe
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "RECIPES", "AmlRecipe", "At2Recipe", "CiteRecipe", "FreshRecipe", "IvraRecipe", "LoraRecipe",
    "RandomLabelsRecipe", "Recipe", "RecipeFactory", "SmatRecipe", "extract_rationales", "list_recipes", "recipe"
]  # fmt: skip
