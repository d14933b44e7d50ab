"""A dataset's labels in a model's numbering: by name, else by number, never by the position in a list."""

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from expound import ExpoundError
from expound.models.encoding.labels import match_labels, renumber_labels
from small import small

SENTIMENT = ("negative", "positive")
UNNAMED = ("LABEL_0", "LABEL_1")
STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")


def test_names_then_numbers():
    cases = [
        (["negative", "positive"], SENTIMENT, {0: 0, 1: 1}),
        (["POS", "NEG"], SENTIMENT, {0: 1, 1: 0}),
        (["positive"], SENTIMENT, {0: 1}),
        (["hate", "hate speech"], ("none", "hate speech", "Hate"), {0: 2, 1: 1}),
        (["hate"], ("hate", "hate speech", "none"), {0: 0}),
        (["Insurance_Change"], ("insurance", "insurance_change"), {0: 1}),
        (["pos"], ("positive", "possible"), {}),
        (["no"], ("nothing",), {}),
        (["1"], SENTIMENT, {0: 1}),
        (["0", "1"], SENTIMENT, {0: 0, 1: 1}),
        (["1", "2"], SENTIMENT, {0: 0, 1: 1}),
        (["1", "2"], ("a", "b", "c"), {0: 1, 1: 2}),
        (["LABEL_1"], UNNAMED, {0: 1}),
        (["1"], UNNAMED, {0: 1}),
        (["LABEL_1"], SENTIMENT, {0: 1}),
        (["4", "5"], ("1", "2", "3", "4", "5"), {0: 3, 1: 4}),
        (["2", "4"], STARS, {0: 1, 1: 3}),
        (["0", "4"], STARS, {0: 0, 1: 4}),
        (["10", "9"], tuple(str(number) for number in range(11)), {0: 10, 1: 9}),
        (["no", "yes"], UNNAMED, {0: 0, 1: 1}),
        (["0", "90", "180", "270"], tuple(f"LABEL_{number}" for number in range(4)), {0: 0, 1: 1, 2: 2, 3: 3}),
        (["yes"], UNNAMED, {}),
        (["2"], SENTIMENT, {}),
        (["-1", "1"], SENTIMENT, {}),
        (["1", "3"], SENTIMENT, {}),
        (["excellent"], SENTIMENT, {}),
        (["LABEL_10"], tuple(f"LABEL_{number}" for number in range(10)), {}),
        (["hat"], ("hate", "hatred"), {}),
    ]
    for names, known, expected in cases:
        assert match_labels(names, known) == expected


def test_a_table_of_one_class_keeps_it():
    model = small("bert", num_labels=2, id2label=dict(enumerate(SENTIMENT)))
    columns = Features({"text": Value("string"), "label": ClassLabel(names=["1"])})
    data = Dataset.from_dict({"text": ["a film", "good"], "label": [0, 0]}, features=columns)
    assert [row["label"] for row in renumber_labels(model, data)] == [1, 1]
    wrong = data.cast_column("label", ClassLabel(names=["7"]))
    with pytest.raises(ExpoundError, match="'7', which the model does not know; it knows: negative, positive"):
        renumber_labels(model, wrong)
