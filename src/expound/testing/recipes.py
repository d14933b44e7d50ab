"""Contract tests for recipes; inherit the class and define one fixture, `factory`."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from expound.cli.train.commands import make_command
from expound.data import load_data
from expound.data.provenance import RECORD
from expound.models import load
from expound.models.loading.checkpoint import digest_weights
from expound.recipes import Recipe, RecipeFactory
from expound.training.loop.run import METRICS

QUICK: dict[str, Any] = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 16,
    "disable_tqdm": True,
    "use_cpu": True,
}


class RecipeContract:
    """Contract tests of a recipe.

    Example:
        class TestMyRecipe(RecipeContract):
            @pytest.fixture
            def factory(self):
                return my_recipe
    """

    start: Any = "tiny"
    """The model that training starts from, for subclasses to replace if the recipe needs a trained model."""

    @pytest.fixture
    def data(self) -> tuple[Dataset, Dataset]:
        """Generated train and dev data with rationales; override it for recipes that need other data."""
        return load_data("generated?size=32", "train"), load_data("generated?size=32", "dev")

    def test_its_command_has_help(self, factory: RecipeFactory, capsys: pytest.CaptureFixture[str]) -> None:
        """Every parameter has a default and a help text, and the docstring contains an example."""
        parameters = inspect.signature(factory).parameters.values()
        assert all(parameter.default is not parameter.empty for parameter in parameters)
        make_command(factory.__name__, factory).main(["--help"], standalone_mode=False)
        assert f"expound train {factory.__name__} " in " ".join(capsys.readouterr().out.split())

    def test_name_arguments_and_departures_are_valid(self, factory: RecipeFactory) -> None:
        """The recipe is named as its factory, arguments are plain values, and departures are sentences."""
        recipe = factory()
        assert recipe.name == factory.__name__
        assert json.dumps(dict(recipe.arguments))
        assert all(departure.endswith(".") for departure in recipe.departures)

    def test_runs_are_recorded_reused_and_reproducible(
        self, factory: RecipeFactory, data: tuple[Dataset, Dataset], tmp_path: Path
    ) -> None:
        """A run writes metrics and a record, the same call reuses it, and a second run has equal weights."""
        recipe = factory()
        digest, metrics = self._train(recipe, data, tmp_path / "first"), tmp_path / "first" / METRICS
        record = json.loads((tmp_path / "first" / RECORD).read_text(encoding="utf-8"))
        assert (record["recipe"], record["paper"]) == (recipe.name, recipe.paper)
        assert json.loads(metrics.read_text(encoding="utf-8"))
        written = metrics.stat().st_mtime_ns
        assert self._train(recipe, data, tmp_path / "first") == digest
        assert metrics.stat().st_mtime_ns == written
        # a second run would differ if runs shared an explainer or a memory
        assert self._train(recipe, data, tmp_path / "second") == digest

    def _train(self, recipe: Recipe, data: tuple[Dataset, Dataset], folder: Path) -> str:
        result = recipe.train(self.start, *data, folder, arguments=QUICK)
        assert result.finished
        return digest_weights(load(folder, device="cpu"))
