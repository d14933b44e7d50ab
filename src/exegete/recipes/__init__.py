"""Training methods of papers, one short file each. A new one is its function in a file and a line in `registry.py`."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.recipes.aml import AmlRecipe
    from exegete.recipes.base import Recipe, RecipeFactory
    from exegete.recipes.fresh import FreshRecipe, extract_rationales
    from exegete.recipes.registry import RECIPES
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["RECIPES", "AmlRecipe", "FreshRecipe", "Recipe", "RecipeFactory", "extract_rationales"]
