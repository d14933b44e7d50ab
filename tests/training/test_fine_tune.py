"""From data to a folder that `expound.load` takes, for every kind of task."""

from __future__ import annotations

import contextlib
import copy
import json

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from tokenizers import normalizers
from transformers import BertForSequenceClassification

import expound
import families
from expound import ExpoundError
from expound.objectives import OBJECTIVES, CrossEntropy
from expound.recipes import RECIPES
from expound.training import train_baseline
from expound.training.loop.starting_model import make_word_tokenizer
from runs import ARGUMENTS, answers, difference, load_generated, pairs, sentences, weights
from test_scaffold import pictures


def digits(split, count):
    return expound.load_data("digits", split, limit=count)


KINDS = {
    "text": (lambda: (load_generated(size=320), load_generated(split="dev", size=80)), "accuracy", 0.65),
    "pair": (lambda: (pairs(192), pairs(24)), "accuracy", 0.9),
    "regression": (
        lambda: (load_generated("regression", size=320), load_generated("regression", "dev", 80)),
        "pearson",
        0.4,
    ),
    "span": (lambda: (answers(96), answers(24)), "f1", 0.6),
    "image": (lambda: (digits("train", 400), digits("dev", 50)), "accuracy", 0.5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_model_learns_and_its_saved_folder_has_the_same_predictions(kind, tmp_path):
    data, metric, enough = KINDS[kind]
    train, dev = data()
    arguments = ARGUMENTS | {"num_train_epochs": 5, "learning_rate": 3e-3}
    result = train_baseline("tiny", train, dev, tmp_path / "run", arguments=arguments)
    history = [entry["loss"] for entry in _history(tmp_path / "run") if "loss" in entry]
    assert np.mean(history[-5:]) < np.mean(history[:5])
    assert result.metrics[metric] > enough
    loaded = expound.load(tmp_path / "run", device="cpu")
    batch = loaded.encode(list(dev.select(range(8))))
    assert torch.equal(loaded.probabilities(batch), result.model.probabilities(batch))
    assert loaded.task.name == {"pair": "classification", "text": "classification", "image": "classification"}.get(
        kind, kind
    )
    if metric == "accuracy":
        right = [loaded.predict(loaded.encode([row])).item() == row["label"] for row in dev]
        assert np.mean(right) == pytest.approx(result.metrics["accuracy"])
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())[metric] == result.metrics[metric]


def _history(folder):
    """Return the log history of the newest checkpoint."""
    newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return json.loads((newest / "trainer_state.json").read_text())["log_history"]


def run(folder, **options):
    data = options.pop("data", sentences(32))
    model = options.pop("model", "tiny")
    arguments = ARGUMENTS | {"num_train_epochs": 1} | options.pop("arguments", {})
    return train_baseline(model, data, options.pop("dev", data), folder, arguments=arguments, **options)


def test_labels_are_named_as_the_data_names_them_in_its_order(tmp_path):
    features = sentences().features.copy()
    features["label"] = ClassLabel(names=["zebra", "ant", "mole"])
    data = sentences(32).cast(features)
    run(tmp_path, data=data)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["id2label"] == {"0": "zebra", "1": "ant", "2": "mole"}
    assert config["label2id"] == {"zebra": 0, "ant": 1, "mole": 2}
    assert expound.load(tmp_path).labels == ("zebra", "ant", "mole")


def make_reordered_model(as_folder, folder):
    """Return a model that knows the classes of the data in another order, and the data."""
    model = families.tiny("bert", seed=3, initializer_range=0.4)
    model.config.id2label = {0: "YES", 1: "NO", 2: "MAYBE"}
    model.config.label2id = {name: number for number, name in model.config.id2label.items()}
    if as_folder:
        model.save_pretrained(folder / "start")
        families.tokenizer("bert").save_pretrained(folder / "start")
    return str(folder / "start") if as_folder else model, sentences(32)


@pytest.mark.parametrize("as_folder", [True, False])
def test_classes_that_a_model_knows_by_name_are_its_own_in_whatever_order_the_data_has_them(as_folder, tmp_path):
    start, data = make_reordered_model(as_folder, tmp_path)
    names = data.features["label"].names
    before = expound.load(make_reordered_model(False, tmp_path)[0], families.tokenizer("bert"))
    said = before.predict(before.encode(data["text"][:])).tolist()
    right = [before.labels[number].lower() == names[row["label"]] for number, row in zip(said, data, strict=True)]
    assert 0 < np.mean(right) < 1
    quiet = {"learning_rate": 1e-12}
    result = run(tmp_path / "run", model=start, processing_class=families.tokenizer("bert"), arguments=quiet)
    assert result.metrics["accuracy"] == np.mean(right)
    assert result.model.labels == expound.load(tmp_path / "run", device="cpu").labels == ("yes", "no", "maybe")


def test_classes_that_a_model_does_not_know_take_the_places_of_those_it_knows(tmp_path):
    start, data = make_reordered_model(False, tmp_path)
    features = data.features.copy()
    features["label"] = ClassLabel(names=["no", "yes", "perhaps"])
    data = data.cast(features)
    result = run(tmp_path / "run", model=start, data=data, processing_class=families.tokenizer("bert"))
    assert result.model.labels == ("no", "yes", "perhaps")


def test_a_pretrained_body_keeps_its_weights_and_gets_the_head_that_the_data_needs(tmp_path, caplog):
    families.tiny("bert", num_labels=5).save_pretrained(tmp_path / "body")
    families.tokenizer("bert").save_pretrained(tmp_path / "body")
    run(tmp_path / "run", model=str(tmp_path / "body"), arguments={"learning_rate": 1e-12})
    assert "the head is new, because the model has 5 classes and the data 3" in caplog.text
    caplog.clear()
    run(tmp_path / "again", model=str(tmp_path / "run"))
    assert "the head is new" not in caplog.text
    before, after = weights(tmp_path / "body"), weights(tmp_path / "run")
    assert after["classifier.weight"].shape == (3, 32)
    body = [name for name in before if not name.startswith("classifier")]
    assert difference({n: before[n] for n in body}, {n: after[n] for n in body}) < 1e-6


def test_a_model_that_learned_nothing_is_told_from_one_that_did(tmp_path, caplog):
    data = sentences(32)
    stuck = run(tmp_path / "stuck", data=data, arguments={"learning_rate": 0.0})
    majority = max(np.bincount(data["label"][:])) / len(data)
    assert stuck.metrics["accuracy"] <= majority
    assert "the model learned nothing" in caplog.text
    caplog.clear()
    options = ARGUMENTS | {"num_train_epochs": 5, "learning_rate": 3e-3}
    learned = train_baseline("tiny", pairs(192), pairs(24), tmp_path / "learned", arguments=options)
    assert learned.metrics["accuracy"] > 1 / 3
    assert "the model learned nothing" not in caplog.text


def test_a_model_object_a_configuration_file_and_a_tokenizer_folder_are_starting_points_too(tmp_path):
    families.tokenizer("bert").save_pretrained(tmp_path / "tokenizer")
    config = {"model_type": "distilbert"} | families.ENCODERS["distilbert"]
    (tmp_path / "small.json").write_text(json.dumps(config))
    result = run(tmp_path / "a", model=str(tmp_path / "small.json"), processing_class=str(tmp_path / "tokenizer"))
    assert result.model.config.model_type == "distilbert"
    assert result.model.config.vocab_size == len(families.tokenizer("bert"))
    model = families.tiny("bert")
    result = run(tmp_path / "b", model=model, processing_class=families.tokenizer("bert"), max_length=16)
    assert result.model.model is model
    assert result.model.max_length == 16
    assert expound.load(tmp_path / "b").max_length == 130
    assert families.tokenizer("bert").model_max_length > 16
    assert isinstance(model, BertForSequenceClassification)


def test_a_finished_run_is_not_redone_and_another_configuration_needs_overwriting(tmp_path, caplog):
    first = run(tmp_path)
    stamp = (tmp_path / "model.safetensors").stat().st_mtime_ns
    again = run(tmp_path)
    assert again.reused
    assert not first.reused
    assert again.metrics == first.metrics
    assert "nothing to do" in caplog.text
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(ExpoundError, match=r"another configuration \(seed: there 0, here 1\)"):
        run(tmp_path, seed=1)
    with pytest.raises(ExpoundError, match=r"arguments.learning_rate"):
        run(tmp_path, arguments={"learning_rate": 0.5})
    with pytest.raises(ExpoundError, match=r"data.train"):
        run(tmp_path, data=sentences(40), dev=sentences(32))
    assert not run(tmp_path, seed=1, overwrite=True).reused
    record = json.loads((tmp_path / "expound_run.json").read_text())
    assert record["status"] == "finished"
    assert record["config"]["seed"] == 1
    assert {"torch", "transformers", "expound"} <= record["versions"].keys()


def test_a_run_that_is_reused_reads_as_many_tokens_as_when_it_was_trained(tmp_path):
    lengths = [run(tmp_path, max_length=16).model.max_length for _ in range(2)]
    assert lengths == [16, 16]


def test_a_run_with_a_processor_that_reads_otherwise_is_another_one(tmp_path):
    """The same vocabulary with and without capitals, the same pictures around another mean."""
    for kind, data in (("bert", sentences(16)), ("vit", pictures(16))):
        tiny = families.tiny(kind)
        for changed in (False, False, True):
            processor = copy.deepcopy(families.processor(kind))
            if changed and kind == "bert":
                processor.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
            elif changed:
                processor.image_mean = (0.1,)
            options = {"data": data, "model": copy.deepcopy(tiny), "processing_class": processor}
            with pytest.raises(ExpoundError, match=r"\(processor") if changed else contextlib.nullcontext():
                run(tmp_path / kind, **options)
    assert json.loads((tmp_path / "bert" / "expound_run.json").read_text())["status"] == "finished"


def test_another_seed_gives_other_weights(tmp_path):
    for name, seed in (("a", 3), ("b", 4)):
        run(tmp_path / name, seed=seed)
    assert difference(weights(tmp_path / "a"), weights(tmp_path / "b")) > 0.0


def test_a_tokenizer_made_from_texts_knows_their_frequent_words_and_spells_the_others():
    made = make_word_tokenizer(["Bb ba", "bb, ab bb"], vocabulary=13)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    expected = [*special, ",", "a", "b", "##,", "##a", "##b", "bb", "ab"]
    assert sorted(made.get_vocab(), key=made.get_vocab().get) == expected
    assert made.tokenize("bb ab ba") == ["bb", "ab", "b", "##a"]


def test_the_best_model_is_the_one_that_is_kept(tmp_path):
    """A learning rate that ruins the model later: what is saved is the best evaluation's, not the last one's."""
    train, dev = load_generated(size=80), load_generated(split="dev", size=80)
    arguments = ARGUMENTS | {"num_train_epochs": 5, "learning_rate": 0.05, "lr_scheduler_type": "constant_with_warmup"}
    result = train_baseline("tiny", train, dev, tmp_path, arguments=arguments)
    evaluated = [entry["eval_accuracy"] for entry in _history(tmp_path) if "eval_accuracy" in entry]
    assert result.metrics["accuracy"] >= max(evaluated)


def test_the_best_weights_of_an_image_model_are_restored(tmp_path):
    """ViT's weights have other names in files than in memory."""
    train, dev = digits("train", 96), digits("dev", 32)
    arguments = ARGUMENTS | {"num_train_epochs": 3, "learning_rate": 5e-3}
    result = train_baseline("tiny", train, dev, tmp_path, arguments=arguments)
    best = min(tmp_path.glob("checkpoint-*"))
    assert difference(weights(best), weights(tmp_path)) == 0.0
    predicted = torch.cat([result.model.predict(result.model.encode([row])) for row in dev])
    assert float((predicted == torch.tensor(dev["label"][:])).double().mean()) == result.metrics["accuracy"]


@pytest.mark.parametrize(
    ("name", "kind", "best"),
    [("regex", "regression", "pearson"), ("regex", "span", "f1"), ("fresh", "regression", "pearson")],
)
def test_where_there_are_no_classes_the_tasks_own_figure_chooses(name, kind, best, tmp_path):
    """Also where terms take gradients at the input, in evaluation too."""
    train, dev = (data.select(range(16)) for data in KINDS[kind][0]())
    result = RECIPES[name]().train("tiny", train, dev, tmp_path, arguments=ARGUMENTS | {"num_train_epochs": 1})
    record = json.loads((tmp_path / "expound_run.json").read_text())
    assert record["config"]["arguments"]["metric_for_best_model"] == best
    assert best in result.metrics


def test_early_stopping_stops_early(tmp_path):
    arguments = {"num_train_epochs": 20, "learning_rate": 1e-12}
    assert run(tmp_path, early_stopping_patience=2, arguments=arguments).steps == 3 * 2


def test_without_evaluations_a_recipe_runs_to_its_end_and_patience_is_refused(tmp_path):
    unjudged = ARGUMENTS | {"num_train_epochs": 2, "eval_strategy": "no", "load_best_model_at_end": False}
    data = load_generated(size=64)
    assert RECIPES["er_joint"]().train("tiny", data, data, tmp_path / "joint", arguments=unjudged).steps > 0
    with pytest.raises(ExpoundError, match="set eval_strategy to epoch or steps"):
        run(tmp_path / "other", early_stopping_patience=2, arguments=unjudged)


def make_labeled_rows(feature, *labels):
    """Return a row with a valid label and then one for each of these labels."""
    first = [0] if isinstance(feature, List) else 0
    types = Features({"text": Value("string"), "label": feature})
    return Dataset.from_dict({"text": ["a film"] * (len(labels) + 1), "label": [first, *labels]}, features=types)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": sentences(8).remove_columns("label")}, "needs a column 'label' or 'answer'"),
        ({"data": sentences(8).select([])}, "no rows to train on"),
        ({"dev": sentences(8, classes=2)}, "different labels"),
        ({"model": "./nowhere"}, "no model at"),
        ({"model": "tiny", "arguments": {"learning_ratio": 1}}, "unusable training arguments"),
        ({"model": families.tiny("bert", num_labels=2)}, "2 outputs, the data 3 classes"),
        (
            {"model": families.tiny("bert", num_labels=2), "data": make_labeled_rows(Value("float32"), 0.5)},
            "2 outputs, a regr",
        ),
        ({"data": make_labeled_rows(Value("float32"), None)}, "row 1 has no label"),
        ({"data": make_labeled_rows(Value("float64"), float("nan"))}, "row 1 has no label"),
        ({"data": make_labeled_rows(ClassLabel(names=["a", "b"]), -1)}, "row 1 has no label"),
        (
            {"data": make_labeled_rows(List(ClassLabel(names=["a", "b"])), [0, 1], [1])},
            "List.*: expected one ClassLabel per row",
        ),
        ({"max_length": 4}, "max_length of at least 8"),
    ],
)
def test_bad_input_is_one_clear_error_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(ExpoundError, match=message):
        run(tmp_path / "run", **options)
    assert not (tmp_path / "run" / "expound_run.json").exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(ExpoundError, match="holds something else"):
        run(tmp_path)
    run(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "three years of work"


def test_every_objective_is_registered_under_its_name():
    assert {name: kind.name for name, kind in OBJECTIVES.items()} == {name: name for name in OBJECTIVES}
    assert CrossEntropy().params == {"weight": 1.0}
