"""Contract tests for every recipe; inherit the class and give it one fixture, `factory`."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from exegete.cli.train.commands import make_command
from exegete.data import load_data
from exegete.models import load
from exegete.models.loading.digest import digest_weights
from exegete.recipes import Recipe, RecipeFactory
from exegete.training.loop.run import METRICS, RECORD

QUICK: dict[str, Any] = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 16,
    "disable_tqdm": True,
    "use_cpu": True,
}


class RecipeContract:
    """Contract tests of a training method.

    Example:
        class TestMyRecipe(RecipeContract):
            @pytest.fixture
            def factory(self):
                return my_recipe
    """

    start: Any = "tiny"
    """The model that training starts from; another one for recipes that need a trained model."""

    @pytest.fixture
    def data(self) -> tuple[Dataset, Dataset]:
        """Train and dev rows, generated, with rationales; override it for methods that need others."""
        return load_data("generated?size=32", "train"), load_data("generated?size=32", "dev")

    def test_it_is_a_command(self, factory: RecipeFactory, capsys: pytest.CaptureFixture[str]) -> None:
        """Every parameter has a default and a help text, and the docstring an example."""
        assert all(each.default is not each.empty for each in inspect.signature(factory).parameters.values())
        make_command(factory.__name__, factory).main(["--help"], standalone_mode=False)
        assert f"exegete train {factory.__name__} " in " ".join(capsys.readouterr().out.split())

    def test_its_facts_are_told(self, factory: RecipeFactory) -> None:
        """Its id and terms; arguments are plain values, which records and addresses of runs are made of."""
        recipe = factory()
        assert recipe.name == factory.__name__
        assert json.dumps(dict(recipe.arguments))
        assert all(departure.endswith(".") for departure in recipe.departures)

    def test_runs_say_what_they_were_and_share_nothing(
        self, factory: RecipeFactory, data: tuple[Dataset, Dataset], tmp_path: Path
    ) -> None:
        """Figures and a record; the same call leaves them as they are; two runs with one seed have the same weights."""
        recipe = factory()
        first, figures = self._trained(recipe, data, tmp_path / "first"), tmp_path / "first" / METRICS
        record = json.loads((tmp_path / "first" / RECORD).read_text(encoding="utf-8"))
        assert (record["recipe"], record["paper"]) == (recipe.name, recipe.paper)
        assert json.loads(figures.read_text(encoding="utf-8"))
        written = figures.stat().st_mtime_ns
        assert self._trained(recipe, data, tmp_path / "first") == first
        assert figures.stat().st_mtime_ns == written
        assert self._trained(recipe, data, tmp_path / "second") == first

    def _trained(self, recipe: Recipe, data: tuple[Dataset, Dataset], folder: Path) -> str:
        result = recipe.train(self.start, *data, folder, arguments=QUICK)
        assert result.finished
        return digest_weights(load(folder, device="cpu"))
