"""Tables and examples for the tests of this folder, with numbers from a seeded generator."""

import numpy as np
import pandas as pd

from expound.data.cards import MetricCard
from expound.reports.explanations import Explanation
from expound.reports.records import Target, Unit

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


def explanation(text="The tea was warm, the rest was not.", marks=None, label="positive", prediction=None, **changes):
    """Explains a text: a token per word between two special tokens; `marks` are the scores, -1 to 1 by default."""
    words, place, units = text.split(" "), 0, []
    for word in words:
        units.append(Unit(word, 0, place, place + len(word)))
        place += len(word) + 1
    marks = np.linspace(-1, 1, len(words)) if marks is None else marks
    values = {
        "targets": (Target(label, 1, 0.75),),
        "units": units,
        "scores": [marks],
        "unit": "word",
        "texts": (text,),
        "prediction": Target(prediction or label, 1, 0.75),
        "method": "occlusion",
        "tokens": (Unit("[CLS]"), *units, Unit("[SEP]")),
        "token_scores": [[0, *marks, 0]],
        "special": (True, *(False for _ in words), True),
    }
    return Explanation(**{**values, **changes})


def image(rows=3, columns=4, **changes):
    """An explanation of an image, whose patches have scores from -1 to 1."""
    units, marks = [Unit(f"p{index}") for index in range(rows * columns)], np.linspace(-1, 1, rows * columns)
    grid = {
        "units": units,
        "scores": [marks],
        "unit": "patch",
        "texts": (),
        "tokens": (Unit("[CLS]"), *units),
        "token_scores": [[0, *marks]],
        "special": (True, *(False for _ in units)),
        "image_shape": (rows, columns),
    }
    return explanation(**{**grid, **changes})
