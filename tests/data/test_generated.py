import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from expound.data import align, generated_tokenizer, load_data, token_mask
from expound.data.generated import get_vocabulary
from expound.data.generated.lexicon import DOMAINS

TASKS = ("sentiment", "pairs", "regression")
EVERY = pytest.mark.parametrize(("task", "domain"), [(task, domain) for task in TASKS for domain in DOMAINS])


def load(task, domain="films", split="train", **options):
    return load_data("generated", split, task=task, domain=domain, **options)


def evidence(row, side=""):
    return [row[f"text{side}"][a:b].lower() for a, b in row[f"rationale{side}"]]


def remove_evidence(row, side=""):
    text = row[f"text{side}"]
    for start, end in reversed(row[f"rationale{side}"]):
        text = text[:start] + text[end:]
    return text


def label_from_evidence(row, task, words):
    """Return the label, by a rule that reads only the marked words."""
    grades = words.adjectives | words.verbs
    if task == "sentiment":
        found, sign = set(), 1
        for word in " ".join(evidence(row)).split():
            if word in ("not", "never"):
                sign = -1
            else:
                found.add(sign * np.sign(grades[word]))
                sign = 1
        (only,) = found
        return int(only > 0)
    if task == "regression":
        degrees = {"slightly": 0.5, "extremely": 1.5}
        parts = [phrase.split() for phrase in evidence(row)]
        return np.mean([grades[part[-1]] * (degrees[part[0]] if len(part) == 2 else 1) for part in parts])
    (first,), (second,) = evidence(row), evidence(row, "_pair")
    place = {
        word: (q, p) for q, quality in enumerate(words.qualities) for p, pole in enumerate(quality) for word in pole
    }
    (q1, p1), (q2, p2) = place[first], place[second]
    return 1 if q1 != q2 else 0 if p1 == p2 else 2


@EVERY
def test_the_evidence_alone_gives_the_label(task, domain):
    for row in load(task, domain, size=500):
        assert row["label"] == pytest.approx(label_from_evidence(row, task, DOMAINS[domain]))


def features(rows, task):
    return [remove_evidence(row) + (" and " + remove_evidence(row, "_pair") if task == "pairs" else "") for row in rows]


@EVERY
def test_without_the_evidence_nothing_gives_the_label(task, domain):
    train, test = load(task, domain), load(task, domain, "test", size=4000)
    bag = CountVectorizer(ngram_range=(1, 2), min_df=2)
    model = Ridge(10.0) if task == "regression" else LogisticRegression(max_iter=500, C=0.1)
    model.fit(bag.fit_transform(features(train, task)), train["label"][:])
    rows = bag.transform(features(test, task))
    if task == "regression":
        assert abs(np.corrcoef(model.predict(rows), test["label"][:])[0, 1]) < 0.1
    else:
        chance = max(np.bincount(test["label"][:])) / len(test)
        assert model.score(rows, test["label"][:]) < chance + 0.04


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_bag_of_all_words_does_better_than_chance_and_not_perfectly(domain):
    train, test = load("sentiment", domain), load("sentiment", domain, "test")
    bag = CountVectorizer(min_df=2)
    model = LogisticRegression(max_iter=500).fit(bag.fit_transform(train["text"][:]), train["label"][:])
    assert 0.65 < model.score(bag.transform(test["text"][:]), test["label"][:]) < 0.97


@pytest.mark.parametrize("side", ["", "_pair"])
def test_one_side_of_a_pair_does_not_tell(side):
    train, test = load("pairs"), load("pairs", split="test", size=4000)
    bag = CountVectorizer()
    model = LogisticRegression(max_iter=500, C=0.1).fit(bag.fit_transform(train[f"text{side}"][:]), train["label"][:])
    assert model.score(bag.transform(test[f"text{side}"][:]), test["label"][:]) < 0.4


def test_pairs_differ_by_the_planted_word_alone():
    for row in load("pairs", size=300):
        scene = row["text_pair"].lower().split()
        (first,), (second,) = evidence(row), evidence(row, "_pair")
        assert first != second
        assert scene.count(second) == 1
        assert " ".join(first if word == second else word for word in scene) in row["text"].lower()


@EVERY
def test_lengths_labels_and_splits(task, domain):
    data, test = load(task, domain, size=1000), load(task, domain, "test", size=1000)
    lengths = [len(text.split()) for text in data["text"]]
    assert min(lengths) >= 8
    assert max(lengths) <= 40
    assert (len(data), len(test)) == (1000, 250)
    assert len(set(data["text"]) & set(test["text"])) <= 3
    if task != "regression":
        counts = np.bincount(data["label"][:])
        assert counts.min() > 0.8 * counts.max()


def test_sizes_are_nested_and_seeds_differ():
    small, large, other = load("sentiment", size=20), load("sentiment", size=50), load("sentiment", size=50, seed=1)
    assert small[:] == large[:20]
    assert large[:] != other[:]


@pytest.mark.parametrize("task", TASKS)
def test_a_shortcut_goes_with_the_label_and_changes_nothing_else(task):
    plain, cheat = load(task, size=400), load(task, size=400, shortcut=0.75)
    days = ("monday", "tuesday", "wednesday")
    hits = 0
    for before, after in zip(plain, cheat, strict=True):
        day = next((i for i, day in enumerate(days) if day in after["text"]), None)
        assert evidence(before) == evidence(after)
        assert before["label"] == after["label"]
        if day is None:
            assert before["text"] == after["text"]
            continue
        hits += 1
        assert day == (after["label"] > 0 if task == "regression" else after["label"])
        assert sorted(before["text"].split()) == sorted(
            after["text"].replace(f"This was on a {days[day]}.", "").split()
        )
    assert 0.65 < hits / 400 < 0.85
    assert load(task, size=50, shortcut=1.0).filter(lambda row: "day." not in row["text"]).num_rows == 0


def test_negation_and_opinions_beside_the_point_occur():
    data = load("sentiment", size=500)
    negated = [row for row in data if {"not", "never"} & set(" ".join(evidence(row)).split())]
    beside = [
        row
        for row in data
        if set(DOMAINS["films"].adjectives) & set(remove_evidence(row).lower().replace(".", " ").split())
    ]
    assert 0.2 < len(negated) / 500 < 0.6
    assert 0.15 < len(beside) / 500 < 0.35


def test_the_domains_share_some_opinions_and_no_aspects():
    films, gadgets = DOMAINS["films"], DOMAINS["gadgets"]
    assert not set(films.aspects) & set(gadgets.aspects)
    shared = set(films.adjectives) & set(gadgets.adjectives)
    assert 0.4 < len(shared) / len(films.adjectives) < 0.8
    assert all(films.adjectives[word] == gadgets.adjectives[word] for word in shared)


def fingerprint():
    rows = [load(task, domain, size=30, shortcut=0.5)[:] for task in TASKS for domain in DOMAINS]
    tokens = sorted(generated_tokenizer().get_vocab().items())
    return hashlib.sha256(json.dumps([rows, tokens], sort_keys=True).encode()).hexdigest()


def test_the_corpus_is_the_same_in_another_process():
    code = "import test_generated; print(test_generated.fingerprint())"
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    env = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": paths}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out.strip() == fingerprint()


@EVERY
def test_the_tokenizer_knows_every_word(task, domain):
    tokenizer = generated_tokenizer()
    data = load(task, domain, size=300, shortcut=0.5)
    for column in {"text", "text_pair"} & set(data.column_names):
        for text in data[column]:
            tokens = tokenizer.tokenize(text)
            assert not any(token.startswith("##") or token == "[UNK]" for token in tokens), text
            assert "".join(tokens) == text.lower().replace(" ", "")


def test_the_tokenizer_spells_unknown_words():
    tokenizer = generated_tokenizer()
    assert tokenizer.tokenize("zebra plots") == ["z", "##e", "##b", "##r", "##a", "plot", "##s"]
    assert tokenizer.tokenize("Café №!") == ["c", "##a", "##f", "##e", "[UNK]", "!"]
    assert 200 < len(get_vocabulary()) < 400


def test_the_tokenizer_makes_pairs_and_survives_saving(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = generated_tokenizer()
    encoded = tokenizer("the plot", "the cast")
    names = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert names == ["[CLS]", "the", "plot", "[SEP]", "the", "cast", "[SEP]"]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert tokenizer.pad_token_id == 0
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("the plot", "the cast")["input_ids"] == encoded["input_ids"]
    assert again.mask_token == "[MASK]"


def test_rationales_reach_exactly_their_tokens():
    tokenizer = generated_tokenizer()
    for row in load("sentiment", size=100):
        encoding = tokenizer(row["text"]).encodings[0]
        mask = token_mask(align((row["text"],), encoding), row["rationale"])
        hit = [token for token, marked in zip(encoding.tokens, mask, strict=True) if marked]
        assert hit == " ".join(evidence(row)).split()
