"""`exegete.train`, `exegete.recipe` and `exegete.objective`: what users call from Python."""

import subprocess
import sys

import pytest

import exegete
from exegete.explainers import InputXGradient, IntegratedGradients

QUICK = {"num_train_epochs": 1, "per_device_train_batch_size": 16, "disable_tqdm": True, "use_cpu": True}


@pytest.fixture(scope="module")
def splits():
    return {split: exegete.load_data("generated?size=32", split) for split in ("train", "dev")}


def test_a_model_is_trained_with_explanations_and_attributed_in_eight_lines(tmp_path):
    result = exegete.train(
        "tiny",
        "generated?size=32",
        "er_joint",
        guide=InputXGradient(),
        weight=10.0,
        output_dir=tmp_path / "run",
        **QUICK,
    )
    attribution = exegete.attribute(result.model, ["a gripping film"], "input_x_gradient")[0]
    assert len(attribution.scores) > 0
    assert {"loss", "cross_entropy", "explanation"} <= result.metrics.keys()
    assert any("eval_loss" in entry for entry in result.history)
    assert result.folder == tmp_path / "run"
    assert exegete.load(result.folder).labels == result.model.labels


@pytest.mark.parametrize("form", ["spec", "mapping", "pair", "dataset and dev"])
def test_data_is_a_spec_a_mapping_a_pair_or_a_dataset_with_dev(splits, form, tmp_path):
    data, dev = {
        "spec": ("generated?size=32", None),
        "mapping": ({"train": splits["train"], "validation": splits["dev"]}, None),
        "pair": ((splits["train"], splits["dev"]), None),
        "dataset and dev": (splits["train"], splits["dev"]),
    }[form]
    found = []

    class Recorder(exegete.Recipe):
        def train(self, model, train, dev, output_dir, options=None, **params):
            found.append((train["text"][:], dev["text"][:], options, params))

    exegete.train("tiny", data, Recorder(name="recorder", paper=""), dev=dev, output_dir=tmp_path, seed=0, max_steps=3)
    (train_texts, dev_texts, _, params) = found[0]
    assert (train_texts, dev_texts) == (splits["train"]["text"][:], splits["dev"]["text"][:])
    assert params == {"seed": 0, "arguments": {"max_steps": 3}}


def test_a_model_with_its_tokenizer_is_trained_in_place(splits, tmp_path):
    start = exegete.train("tiny", splits, "baseline", output_dir=tmp_path / "first", **QUICK).model
    before = start.model.get_input_embeddings().weight.detach().clone()
    for number, model in enumerate([start, (start.model, start.processing_class)]):
        result = exegete.train(model, splits, exegete.recipe("baseline"), output_dir=tmp_path / str(number), **QUICK)
        assert result.model.model is start.model
    assert not before.equal(start.model.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "er_join"}, "Did you mean 'er_joint'"),
        ({"wieght": 1.0}, "unknown parameter of exegete.train 'wieght'. Did you mean 'weight'"),
        ({"data": {"train": None}}, "expected the splits train and dev, got train"),
        ({"data": [{"text": "a", "label": 0}]}, "expected data to choose the best checkpoint on"),
        ({"data": ([], [])}, "expected a spec or a datasets.Dataset as train data, got list"),
        ({"model": ("a", "b", "c")}, r"expected \(model, tokenizer\), got a tuple of 3"),
    ],
)
def test_what_cannot_be_trained_is_an_error_that_says_what_to_do(arguments, message, tmp_path):
    given = {"model": "tiny", "data": "generated?size=8", "output_dir": tmp_path, **arguments}
    with pytest.raises(exegete.ExegeteError, match=message):
        exegete.train(**given)


def test_recipes_and_objectives_take_explainers_as_objects():
    guide = IntegratedGradients(n_steps=4)
    _, term = exegete.recipe("er_joint", guide=guide, weight=3.0).objectives
    assert (term.explainer, term.weight) == (guide, 3.0)
    with pytest.raises(exegete.ExegeteError, match="baseline takes no parameter"):
        exegete.recipe("baseline", explainer=guide)
    assert exegete.recipe("er_joint", explainer=guide).objectives[1].explainer == guide
    assert exegete.recipe("regex", explainer=guide).objectives[-1].explainer == guide
    assert exegete.recipe("fresh", explainer=guide).explainer == guide
    objective = exegete.objective("explanation", explainer=guide, weight=3.0)
    assert objective == exegete.objective("explanation?explainer=integrated_gradients?n_steps=4&weight=3")
    assert exegete.objective(objective) is objective
    custom = exegete.recipe("custom", objectives=[exegete.objective("cross_entropy"), objective])
    assert custom.objectives[1] == objective
    with pytest.raises(exegete.ExegeteError, match="occurs twice"):
        exegete.recipe("custom", objectives=[objective, objective])


def test_a_recipe_spec_converts_its_parameters():
    recipe = exegete.recipe("er_joint?guide=alti&weight=10")
    assert (recipe.objectives[1].explainer.name, recipe.objectives[1].weight) == ("alti", 10.0)
    assert exegete.recipe(recipe) is recipe
    with pytest.raises(exegete.ExegeteError, match="is a Recipe already: pass weight when you create it"):
        exegete.recipe(recipe, weight=1.0)
    with pytest.raises(exegete.ExegeteError, match="unknown parameter of er_joint 'wait'"):
        exegete.recipe("er_joint", wait=1.0)


def test_lists_name_every_part():
    recipes, objectives = exegete.list_recipes(), exegete.list_objectives()
    assert set(recipes["name"]) == set(exegete.recipes.RECIPES)
    assert set(objectives["name"]) == set(exegete.objectives.OBJECTIVES)
    assert all(recipes["summary"])
    assert all(objectives["summary"])
    assert all(objectives["equation"][: len(exegete.objectives.OBJECTIVES.native)])


def test_rooms_are_attributes_of_the_package_and_importing_it_loads_no_torch():
    rooms = "data explainers metrics models objectives recipes"
    code = f"""
import sys, exegete
assert "torch" not in sys.modules
assert set(exegete.__all__) <= set(dir(exegete))
for room in {rooms.split()!r}:
    assert getattr(exegete, room) is sys.modules[f"exegete.{{room}}"]
for name in exegete.__all__:
    getattr(exegete, name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
