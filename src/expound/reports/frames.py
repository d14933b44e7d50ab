"""Scores of explanations as pandas data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from expound.errors import ExpoundError

if TYPE_CHECKING:
    import pandas as pd

    from expound.reports.explanations import Explanation


def make_frame(explanation: Explanation, side: Literal["input", "response"], *, long: bool) -> pd.DataFrame:
    """Return the scores as a table, see `Explanation.to_pandas`."""
    import pandas as pd

    if side == "response":
        if explanation.exchange is None or explanation.response_scores is None:
            raise ExpoundError("the response's own tokens have no scores: explain with attribute_target")
        tokens = list(explanation.exchange.tokens)
        return pd.DataFrame(explanation.response_scores, index=list(explanation.target_texts), columns=tokens)
    if not long:
        return pd.DataFrame(
            explanation.scores, index=list(explanation.target_texts), columns=list(explanation.unit_texts)
        )
    rows = []
    for target, scores in zip(explanation.targets, explanation.scores.tolist(), strict=True):
        for unit, score in zip(explanation.units, scores, strict=True):
            about = {"index": explanation.index, "method": explanation.method, "target": target.text}
            place = {"unit": unit.text, "segment": unit.segment, "start": unit.start, "end": unit.end}
            rows.append(about | {"probability": target.probability} | place | {"score": score})
    columns = ("index", "method", "target", "probability", "unit", "segment", "start", "end", "score")
    return pd.DataFrame(rows, columns=columns)


def compare_scores(explanation: Explanation, other: Explanation) -> pd.DataFrame:
    """Return two explanations' scores side by side, see `Explanation.compare_to`."""
    if explanation.unit_texts != other.unit_texts or len(explanation.targets) != len(other.targets):
        raise ExpoundError(
            f"expected two explanations of the same units and targets, got units '{explanation.unit}' and "
            f"'{other.unit}': explain the same example, and aggregate() both to one unit"
        )
    frame = make_frame(explanation, "input", long=True)[["target", "unit"]]
    names = [explanation.method, other.method]
    if names[0] == names[1]:
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    for name, item in zip(names, (explanation, other), strict=True):
        largest = np.abs(item.scores).max(1, keepdims=True, initial=0)
        scaled = np.divide(item.scores, largest, out=np.zeros_like(item.scores), where=largest > 0)
        frame[name] = scaled.ravel()
    return frame.assign(difference=frame[names[1]] - frame[names[0]])
