"""Tables, curves and examples for the tests of this folder; numbers from a seeded generator, sentences of our own."""

import numpy as np
import pandas as pd

from exegete.data.cards import MetricCard
from exegete.reports.attributions import Attribution

CARDS = [
    MetricCard(
        name="comprehensiveness",
        family="faithfulness",
        higher_is_better=True,
        paper="DeYoung et al. 2020",
        bounds=(-1, 1),
        label="Comprehensiveness",
    ),
    MetricCard(
        name="sufficiency", family="faithfulness", higher_is_better=False, paper="DeYoung et al. 2020", bounds=(-1, 1)
    ),
    MetricCard(name="seconds", family="cost", higher_is_better=False, bounds=(0, None)),
]


def results(methods=("random", "attention", "occlusion"), examples=40, seed=0):
    """One row for each example and method; comprehensiveness is undefined for every fifth example."""
    generator = np.random.default_rng(seed)
    rows = [
        {
            "method": method,
            "example": example,
            "comprehensiveness": np.nan if example % 5 == 0 else place / 10 + generator.normal(),
            "sufficiency": generator.normal(),
            "seconds": (1 + place) * generator.gamma(2.0),
        }
        for example in range(examples)
        for place, method in enumerate(methods)
    ]
    return pd.DataFrame(rows, columns=["method", "example", *(card.name for card in CARDS)])


def attribution(text="The tea was warm, the rest was not.", marks=None, **changes):
    """A text split at spaces, a token a word between two special tokens; `marks` score them, -1 to 1 unless given."""
    words = tuple(text.split(" "))
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    marks = np.linspace(-1, 1, len(words)) if marks is None else marks
    values = {
        "tokens": ("[CLS]", *words, "[SEP]"),
        "scores": [0, *marks, 0],
        "words": words,
        "word_scores": marks,
        "word_spans": tuple(
            (0, int(start), int(start) + len(word)) for start, word in zip(starts, words, strict=False)
        ),
        "texts": (text,),
        "target": 1,
        "target_label": "positive",
        "prediction": 1,
        "prediction_label": "positive",
        "probability": 0.75,
        "method": "occlusion",
        "special": (True, *(False for _ in words), True),
    }
    return Attribution(**{**values, **changes})


def image(rows=3, columns=4, **changes):
    """An image of patches whose scores run from -1 to 1."""
    count = rows * columns
    empty = {"words": (), "word_scores": (), "word_spans": (), "texts": ()}
    grid = {
        "tokens": ("[CLS]", *(f"p{index}" for index in range(count))),
        "scores": [0, *np.linspace(-1, 1, count)],
        "special": (True, *(False for _ in range(count))),
        "image_shape": (rows, columns),
    }
    return attribution(**{**empty, **grid, **changes})
