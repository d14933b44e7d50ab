"""`expound.train`, `expound.recipe` and `expound.objective`: what users call from Python."""

import json

import pandas as pd
import pytest
from datasets import Dataset
from transformers import TrainerCallback, TrainingArguments

import expound
from expound.explainers import InputXGradient, IntegratedGradients
from expound.recipes.train import _find_splits

QUICK = {"num_train_epochs": 1, "per_device_train_batch_size": 16, "disable_tqdm": True, "use_cpu": True}


REVIEWS = [
    {"review": f"a {word} film number {number}", "stars": verdict, "why": [word]}
    for number in range(30)
    for word, verdict in (("gripping", "good"), ("tedious", "bad"))
]


@pytest.fixture(scope="module")
def splits():
    return {split: expound.load_data("generated?size=32", split) for split in ("train", "dev")}


def test_a_model_is_trained_with_explanations_and_attributed_in_eight_lines(tmp_path):
    result = expound.train(
        "tiny",
        "generated?size=32",
        "er_joint",
        explainer=InputXGradient(),
        weight=10.0,
        output_dir=tmp_path / "run",
        args=QUICK,
    )
    attribution = expound.attribute(result.model, ["a gripping film"], "input_x_gradient")[0]
    assert len(attribution.scores) > 0
    assert {"loss", "cross_entropy", "rationale_alignment"} <= result.metrics.keys()
    assert any("eval_loss" in entry for entry in result.history)
    assert result.output_dir == tmp_path / "run"
    assert expound.load(result.output_dir).labels == result.model.labels


@pytest.mark.parametrize("form", ["spec", "mapping", "pair", "dataset and dev"])
def test_data_is_a_spec_a_mapping_a_pair_or_a_dataset_with_dev(splits, form, tmp_path):
    data, dev = {
        "spec": ("generated?size=32", None),
        "mapping": ({"train": splits["train"], "validation": splits["dev"]}, None),
        "pair": ((splits["train"], splits["dev"]), None),
        "dataset and dev": (splits["train"], splits["dev"]),
    }[form]
    found = []

    class Recorder(expound.Recipe):
        def train(self, model, train, dev, output_dir, options=None, **params):
            found.append((train["text"][:], dev["text"][:], options, params))

    expound.train(
        "tiny", data, Recorder(name="recorder", paper=""), dev=dev, output_dir=tmp_path, args={"max_steps": 3}
    )
    (train_texts, dev_texts, options, params) = found[0]
    assert (train_texts, dev_texts) == (splits["train"]["text"][:], splits["dev"]["text"][:])
    assert (options.seed, options.arguments, params) == (0, {"max_steps": 3}, {})


@pytest.mark.parametrize("form", ["rows", "frame", "dataset"])
def test_rows_of_the_users_own_train_the_model_that_the_same_file_trains(form, tmp_path, caplog):
    rows = {"rows": REVIEWS, "frame": pd.DataFrame(REVIEWS), "dataset": Dataset.from_list(REVIEWS)}[form]
    columns = {"text_column": "review", "label_column": "stars", "rationale_column": "why"}
    result = expound.train("tiny", rows, "er_joint", output_dir=tmp_path / "run", args=QUICK, **columns)
    assert "of 60 rows, 48 are trained on, 11 choose the best checkpoint and 1 are left for a test" in caplog.text
    (tmp_path / "reviews.jsonl").write_text("\n".join(map(json.dumps, REVIEWS)))
    spec = f"jsonl:{tmp_path / 'reviews.jsonl'}"
    same = expound.train("tiny", spec, "er_joint", output_dir=tmp_path / "file", args=QUICK, **columns)
    assert same.metrics == result.metrics
    assert result.model.labels == ("bad", "good")
    assert result.metrics["rationale_alignment"] > 0
    assert len(expound.attribute(result.model, ["a gripping film"], "input_x_gradient")[0].scores) > 0


def test_splits_share_their_labels_and_pairs_have_columns(tmp_path):
    train = [{"a": f"premise {n}", "b": "what follows", "gold": ["no", "yes", "unsure"][n % 3]} for n in range(9)]
    dev = pd.DataFrame(train[:2])
    columns = {"text_column": "a", "text_pair_column": "b", "label_column": "gold"}
    result = expound.train("tiny", (train, dev), "baseline", output_dir=tmp_path, args=QUICK, **columns)
    assert result.model.labels == ("no", "unsure", "yes")


def test_callbacks_arguments_and_metrics_of_the_user_are_used(splits, tmp_path):
    class Counter(TrainerCallback):
        steps = 0

        def on_step_end(self, args, state, control, **_):
            self.steps += 1

    def share_of_class_one(prediction):
        assert set(prediction.label_ids) <= {0, 1}
        return {"ones": float((prediction.predictions.argmax(-1) == 1).mean())}

    counter = Counter()
    args = TrainingArguments(
        output_dir=tmp_path / "run", num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True,
        metric_for_best_model="ones", seed=7,
    )  # fmt: skip
    result = expound.train(
        "tiny", splits, "baseline", args=args,
        options={"callbacks": [counter], "compute_metrics": share_of_class_one},
    )  # fmt: skip
    assert counter.steps == result.steps == 16
    assert result.output_dir == tmp_path / "run"
    record = json.loads((result.output_dir / "expound_run.json").read_text())["config"]
    assert (record["seed"], record["arguments"]["metric_for_best_model"]) == (7, "ones")
    ones = [entry["eval_ones"] for entry in result.history if "eval_ones" in entry]
    assert result.metrics["ones"] == max(ones)


def test_a_model_with_its_tokenizer_is_trained_in_place(splits, tmp_path):
    start = expound.train("tiny", splits, "baseline", output_dir=tmp_path / "first", args=QUICK).model
    before = start.model.get_input_embeddings().weight.detach().clone()
    for number, model in enumerate([start, (start.model, start.processing_class)]):
        result = expound.train(model, splits, expound.recipe("baseline"), output_dir=tmp_path / str(number), args=QUICK)
        assert result.model.model is start.model
    assert not before.equal(start.model.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "er_join"}, "Did you mean 'er_joint'"),
        ({"wieght": 1.0}, "unknown parameter of er_joint 'wieght'. Did you mean 'weight'"),
        ({"data": {"dev": None}}, "expected the splits train and dev, got dev"),
        ({"data": [{"text": "a", "label": 0}]}, "1 rows are too few to set some aside.*: pass dev="),
        ({"data": ([], [])}, "the train data as a spec, a datasets.Dataset, a pandas DataFrame or a list of dicts"),
        (
            {"data": REVIEWS, "text_column": "body"},
            r"the data has no column 'body' \(text_column\); it has: review",
        ),
        ({"data": [{"text": "a", "label": 1}, {"text": "b", "label": "x"}]}, "a column with values of several types"),
        ({"output_dir": None}, "pass output_dir="),
        ({"num_train_epochs": 1}, r"no parameter of the recipe: pass args=\{'num_train_epochs': …\}"),
        ({"options": {"max_lenght": 1}}, "Did you mean 'max_length'"),
        ({"model": ("a", "b", "c")}, r"expected \(model, tokenizer\), got a tuple of 3"),
    ],
)
def test_what_cannot_be_trained_is_an_error_that_says_what_to_do(arguments, message, tmp_path):
    given = {"model": "tiny", "data": "generated?size=8", "output_dir": tmp_path, **arguments}
    with pytest.raises(expound.ExpoundError, match=message):
        expound.train(**given)


def test_recipes_and_objectives_take_explainers_as_objects():
    guide = IntegratedGradients(n_steps=4)
    _, term = expound.recipe("er_joint", explainer=guide, weight=3.0).objectives
    assert (term.explainer, term.weight) == (guide, 3.0)
    with pytest.raises(expound.ExpoundError, match="baseline takes no parameter"):
        expound.recipe("baseline", explainer=guide)
    assert expound.recipe("er_joint", explainer=guide).objectives[1].explainer == guide
    assert expound.recipe("regex", explainer=guide).objectives[-1].explainer == guide
    assert expound.recipe("fresh", explainer=guide).explainer == guide
    objective = expound.objective("rationale_alignment", explainer=guide, weight=3.0)
    assert objective == expound.objective("rationale_alignment?explainer=integrated_gradients?n_steps=4&weight=3")
    assert expound.objective(objective) is objective
    custom = expound.recipe("custom", objectives=[expound.objective("cross_entropy"), objective])
    assert custom.objectives[1] == objective
    with pytest.raises(expound.ExpoundError, match="occurs twice"):
        expound.recipe("custom", objectives=[objective, objective])


def test_a_recipe_spec_converts_its_parameters():
    recipe = expound.recipe("er_joint?explainer=alti&weight=10")
    assert (recipe.objectives[1].explainer.name, recipe.objectives[1].weight) == ("alti", 10.0)
    assert expound.recipe(recipe) is recipe
    with pytest.raises(expound.ExpoundError, match="is a Recipe already: pass weight when you create it"):
        expound.recipe(recipe, weight=1.0)
    with pytest.raises(expound.ExpoundError, match="unknown parameter of er_joint 'wait'"):
        expound.recipe("er_joint", wait=1.0)


def test_lists_name_every_part():
    recipes, objectives = expound.list_recipes(), expound.list_objectives()
    assert set(recipes["name"]) == set(expound.recipes.RECIPES)
    assert set(objectives["name"]) == set(expound.objectives.OBJECTIVES)
    assert all(recipes["summary"])
    assert all(objectives["summary"])
    assert all(objectives["equation"][: len(expound.objectives.OBJECTIVES.native)])


def test_every_form_of_rows_is_read_alike(tmp_path):
    frame = pd.DataFrame(REVIEWS)
    frame.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    columns = {name: list(values) for name, values in frame.items()}
    named = {"label_column": "stars", "rationale_column": "why"}
    stream = Dataset.from_list(REVIEWS).to_iterable_dataset()
    found = [_find_splits(form, None, 0, named) for form in (REVIEWS, frame, columns, stream, tmp_path / "rows.jsonl")]
    assert found[0][0].features["label"].names == ["bad", "good"]
    for train, dev in found:
        assert train.to_list() == found[0][0].to_list()
        assert dev.to_list() == found[0][1].to_list()
