"""Every public name is on a page of the reference, with a text and an example. `make docs` runs the examples."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
from importlib import import_module

import pytest

from expound.data.cards import MethodCard, MetricCard
from expound.explainers.registry import EXPLAINERS
from expound.metrics.registry import METRICS
from readme_blocks import ROOT


@pytest.fixture(scope="module")
def blocks():
    """The script that runs the reference's examples."""
    found = importlib.util.spec_from_file_location("reference_blocks", ROOT / "docs" / "scripts" / "blocks.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_public_name_has_an_example(blocks):
    assert list(blocks.find_missing()) == []


SHAPE = re.compile(r"\[[^\]\n]*\]|scalar|shape")


def _functions(value):
    """A public function, or a class's methods and properties that are not private."""
    found = [value]
    if isinstance(value, type):
        found = [getattr(each, "__func__", getattr(each, "fget", each)) for each in vars(value).values()]
    ours = (each for each in found if inspect.isfunction(each) and (each.__module__ or "").startswith("expound"))
    return [each for each in ours if not each.__name__.startswith("_")]


def test_public_functions_of_tensors_say_shapes_and_those_that_refuse_say_errors(blocks):
    silent = set()
    for package in blocks._public():
        module = import_module(package)
        for each in (each for name in {*module.__all__} - blocks.PARTS for each in _functions(getattr(module, name))):
            said, kinds = inspect.getdoc(each) or "", " ".join(map(str, inspect.get_annotations(each).values()))
            if re.search(r"\b(Tensor|NDArray)\b", kinds) and not SHAPE.search(said):
                silent.add(f"{each.__qualname__} says no shape")
            refuses = re.search(r"raise (ExpoundError|unknown)\b", inspect.getsource(each))
            if refuses and not re.search("[Rr]aises?|ExpoundError", said):
                silent.add(f"{each.__qualname__} says no error")
    assert silent == set()


def test_methods_and_metrics_name_their_source_unless_they_are_of_this_library():
    cards = EXPLAINERS.cards(MethodCard) | METRICS.cards(MetricCard)
    native = {name for registry in (EXPLAINERS, METRICS) for name in registry.native}
    assert {name for name, card in cards.items() if name in native and not card.paper} == {
        "citation", "hidden_state_probe", "llm_ranking", "random",
    }  # fmt: skip


def test_what_is_missing_is_told(blocks, tmp_path):
    shutil.copytree(blocks.REFERENCE, tmp_path, dirs_exist_ok=True)
    page = tmp_path / "04_explainers.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(
        text.replace("::: expound.explainers.list_methods\n", "::: expound.explainers.old\n"), encoding="utf-8"
    )
    (tmp_path / "10_web.md").unlink()
    last = tmp_path / "09_testing.md"
    last.write_text(last.read_text(encoding="utf-8").rpartition("```python")[0], encoding="utf-8")
    found = list(blocks.find_missing(tmp_path))
    assert "expound.explainers.list_methods is public and on no page" in found
    assert "expound.explainers.old is on a page and not public" in found
    assert "expound.serve.create_app is public and on no page" in found
    assert "expound.testing.NoSideEffectsContract has no example" in found
