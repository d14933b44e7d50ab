"""The attack against a search that shows the model one text at a time, and its figures by hand."""

from __future__ import annotations

import json
import math

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value

import families
from expound import ExpoundError
from expound.cli import main
from expound.data.swaps import apply_swaps, find_swaps
from expound.metrics import attack as module
from expound.metrics.attack import AttackReport, AttackResult, attack
from expound.models import ExplainedModel

TEXTS = [
    "Mary and Peter don't like the 3 films from Paris",
    "a dull film",
    "it's 25 minutes of Zoë in Tokyo, it is not bad",
    "David Smith can't act in two films",
    "静かな町の映画",
    "I am in London with Karen , we will see 9 shows",
    "William went to Germany , Mexico and Japan",
]


@pytest.fixture(scope="module")
def model():
    """A model whose answers depend on every word: its classes are equally likely on the mean of the texts."""
    tiny = families.tiny("bert", dtype=torch.float64)
    explained = ExplainedModel(tiny, families.tokenizer("bert"))
    with torch.no_grad():
        tiny.classifier.weight.mul_(40)
        tiny.classifier.bias.sub_(torch.cat([explained(explained.encode([text])).logits for text in TEXTS]).mean(0))
    return explained


@pytest.fixture(scope="module")
def rows(model):
    """Rows that the model classifies correctly, except the last one."""
    labels = [int(model.predict(model.encode([text]))) for text in TEXTS]
    labels[-1] = (labels[-1] + 1) % 3
    return [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]


def predict_alone(model, text):
    return model.probabilities(model.encode([text]))[0].double()


def search_greedily(model, text, label, budget=math.inf, **options):
    """Greedy search by the definition: returns status, text and number of queries."""
    found, chosen, queries = find_swaps(text, **options), {}, 1
    if int(predict_alone(model, text).argmax()) != label:
        return "wrong already", text, 1
    if not found:
        return "nothing to swap", text, 1
    while len(chosen) < len(found):
        tried = []
        for number, swap in enumerate(found):
            for word in () if number in chosen else swap.choices:
                if queries < budget:
                    queries += 1
                    answer = predict_alone(model, apply_swaps(text, found, {**chosen, number: word}))
                    tried.append((float(answer[label]), len(tried), {number: word}, int(answer.argmax())))
        if not tried:
            return "out of queries", text, queries
        best = min(tried)
        chosen |= best[2]
        if best[3] != label:
            return "succeeded", apply_swaps(text, found, chosen), queries
    return "failed", text, queries


@pytest.mark.parametrize(("budget", "seed"), [(None, 0), (None, 3), (12, 3), (6, 0), (1, 0)])
def test_an_attack_equals_greedy_search_on_one_text_at_a_time(model, rows, budget, seed):
    report = attack(model, rows, budget=budget, seed=seed, choices=3)
    for row, outcome in zip(rows, report.examples, strict=True):
        status, text, queries = search_greedily(
            model, row["text"], row["label"], budget or math.inf, seed=seed, choices=3
        )
        assert (outcome.status, outcome.text, outcome.queries) == (status, text, queries)
        assert outcome.before == pytest.approx(float(predict_alone(model, row["text"])[row["label"]]), abs=1e-6)
        assert outcome.after == pytest.approx(float(predict_alone(model, text)[row["label"]]), abs=1e-6)
        assert (outcome.predicted != row["label"]) == (status in ("succeeded", "wrong already"))
    found = {outcome.status for outcome in report.examples}
    assert {"nothing to swap", "wrong already"} <= found
    assert ("out of queries" if budget else "succeeded") in found


def test_a_failed_attack_leaves_the_text_unchanged(model):
    with torch.no_grad():
        model.model.classifier.bias[0] += 1e3
    try:
        rows = [{"text": text, "label": 0} for text in TEXTS]
        report = attack(model, rows, choices=2)
        expected = [search_greedily(model, text, 0, choices=2) for text in TEXTS]
    finally:
        with torch.no_grad():
            model.model.classifier.bias[0] -= 1e3
    assert [(one.status, one.text, one.queries) for one in report.examples] == expected
    assert {status for status, *_ in expected} == {"failed", "nothing to swap"}
    assert report.figures["success_rate"] == 0
    assert report.figures["queries"] > 2


def test_an_attack_is_repeatable_and_independent_of_other_examples(model, rows, monkeypatch):
    together = attack(model, rows)
    assert attack(model, rows) == together
    monkeypatch.setattr(module, "EXAMPLES_PER_ROUND", 2)
    apart = attack(model, rows[::-1])
    assert [one.text for one in apart.examples[::-1]] == [one.text for one in together.examples]
    assert [one.queries for one in apart.examples[::-1]] == [one.queries for one in together.examples]


def test_attacked_texts_share_passes(model, rows):
    sizes = []
    handle = model.model.register_forward_hook(lambda *_: sizes.append(1))
    try:
        report = attack(model, rows * 4)
    finally:
        handle.remove()
    assert len(sizes) * 10 < sum(example.queries for example in report.examples)


def test_both_texts_of_a_pair_are_attacked(model):
    rows = [{"text": "a film", "text_pair": "Mary met Peter"}, {"text": "Mary met Peter", "text_pair": "a film"}]
    for row in rows:
        row["label"] = int(model.predict(model.encode([row])))
    first, second = attack(model, rows, choices=2).examples
    assert first.queries > 1
    assert second.queries > 1
    for outcome, row in zip((first, second), rows, strict=True):
        still = "text" if row["text"] == "a film" else "text_pair"
        assert getattr(outcome, still) == "a film"


def test_words_that_do_not_fit_into_the_model_are_left_alone(model):
    start, end = "Mary and Peter don't like films that are long and slow", ", 3 of them from Paris"
    label = int(model.predict(model.encode([start])))
    narrow = model.with_max_length(model.encode(["Mary and Peter don't like"]).length)
    (short,), (long,) = (attack(narrow, [{"text": text, "label": label}]).examples for text in (start, start + end))
    assert short.queries > 1
    assert (long.status, long.queries, long.after) == (short.status, short.queries, short.after)
    assert long.text == short.text + end


def test_the_figures_by_hand():
    def make_result(status, words=10, changed=0, queries=1):
        return AttackResult(status, "", None, 0, 0, 0.9, 0.4, words, changed, queries)

    report = AttackReport(
        [
            make_result("succeeded", 10, 2, 7),
            make_result("succeeded", 20, 1, 3),
            make_result("failed", 30, 0, 9),
            make_result("nothing to swap", 4),
            make_result("wrong already", 6),
        ]
    )
    assert report.figures == {
        "successes": 2.0,
        "original_accuracy": 0.8,
        "accuracy_under_attack": 0.4,
        "success_rate": 0.5,
        "perturbed_words": pytest.approx((0.2 + 0.05) / 2),
        "words_per_input": 14.0,
        "queries": 5.0,
    }
    assert list(report.to_pandas()["status"])[2:4] == ["failed", "nothing to swap"]
    wrong = AttackReport([make_result("wrong already")]).figures
    assert wrong["original_accuracy"] == 0
    assert all(math.isnan(wrong[name]) for name in ("success_rate", "perturbed_words", "queries"))


def test_changed_words_are_those_that_a_swap_touches(model):
    rows = [{"text": text, "label": int(model.predict(model.encode([text])))} for text in TEXTS[:1] + TEXTS[2:4]]
    won = [outcome for outcome in attack(model, rows).examples if outcome.status == "succeeded"]
    assert won
    for outcome in won:
        given = next(text for text in TEXTS if len(text.split()) == outcome.words)
        same = set(given.split()) & set(outcome.text.split())
        assert outcome.changed >= outcome.words - len(same) - 1
        assert 0 < outcome.changed <= outcome.words


def test_inputs_that_cannot_be_attacked_are_named(model):
    row = {"text": "Mary", "label": 0}
    with pytest.raises(ExpoundError, match="row 0 has no label that is a class"):
        attack(model, [{"text": "a film", "label": 0.5}])
    with pytest.raises(ExpoundError, match="row 1 has no label"):
        attack(model, [row, {"text": "Mary"}])
    with pytest.raises(ExpoundError, match="at least 1 query"):
        attack(model, [row], budget=0)
    with pytest.raises(ExpoundError, match="at least one example"):
        attack(model, [])
    regression = ExplainedModel(families.tiny("bert", num_labels=1), families.tokenizer("bert"))
    with pytest.raises(ExpoundError, match="needs a classifier"):
        attack(regression, [row])


def test_the_command_prints_figures_or_json(model, tmp_path, capsys):
    folder = tmp_path / "model"
    model.model.config.id2label = {0: "bad", 1: "mixed", 2: "good"}
    model.model.save_pretrained(folder)
    families.tokenizer("bert").save_pretrained(folder)
    file = tmp_path / "data.csv"
    file.write_text("text,label\nMary met Peter,good\nit's 3 films,bad\nin Paris,mixed\n", encoding="utf-8")
    settings = [
        "attack",
        "--model",
        str(folder),
        "--data",
        f"csv:{file}",
        "--split",
        "all",
        "--quiet",
        "--device",
        "cpu",
    ]
    assert main(settings) == 0
    assert "accuracy under attack" in capsys.readouterr().out
    assert main([*settings, "--json", "--budget", "5", "--kinds", "name,number"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["examples"]) == 3
    assert 0 <= shown["figures"]["accuracy_under_attack"] <= shown["figures"]["original_accuracy"] <= 1
    assert main([*settings, "--kinds", "nouns"]) == 2
    assert "unknown kind of swap 'nouns'" in capsys.readouterr().err
    assert main(["attack", "--help"]) == 0
    assert "expound attack --model" in " ".join(capsys.readouterr().out.split())


def test_a_dataset_is_attacked_with_its_labels_in_the_models_numbering(model, rows):
    names = [*model.labels[1:], model.labels[0]]
    labels = [names.index(model.labels[row["label"]]) for row in rows]
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    data = Dataset.from_dict({"text": [row["text"] for row in rows], "label": labels}, features)
    assert attack(model, data) == attack(model, rows)
