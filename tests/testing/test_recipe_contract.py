"""The shipped contract holds for every native recipe that trains a model, and catches what breaks it."""

from __future__ import annotations

import pytest

from expound.recipes import RECIPES, Recipe
from expound.testing import RecipeContract


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("aml", "at2", "lora")])  # need a model
class TestNativeRecipes(RecipeContract):
    @pytest.fixture
    def factory(self, name):
        return RECIPES[name]


def careless():
    """Train."""
    return Recipe(name="other", paper="")


def test_a_careless_recipe_is_caught(capsys):
    contract = RecipeContract()
    with pytest.raises(AssertionError):
        contract.test_its_command_has_help(careless, capsys)
    with pytest.raises(AssertionError):
        contract.test_name_arguments_and_departures_are_valid(careless)
