"""A leaderboard as a table of short strings, and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from expound.reports.table import BOLD, Cell, Table, format_csv
from expound.reports.tables.leaderboard import CHANCE, CONFIDENCE, CONTROL, LEVEL, Floats, Leaderboard

if TYPE_CHECKING:
    import pandas as pd

NAMED, FEWEST_EXAMPLES, MOST_EXAMPLES = 4, 20, 100_000
NEGLIGIBLE = 5e-4
SHARES = ("", "", "half", "a third", "a quarter", "a fifth", "a sixth", "a seventh", "an eighth", "a ninth", "a tenth")


def format_verdict(board: Leaderboard) -> str:
    """Return which methods are best by the first metric, which are tied, and their cost.

    As "On 200 examples, decompx_linear and occlusion are tied best by AOPC (0.41, 0.40); …". Empty without methods,
    without metrics and without a defined mean.
    """
    if not board.rows or not board.cards or not np.isfinite(board.mean[0, 0]):
        return ""
    leaders, title = find_leaders(board), board.cards[0].heading
    count = int(board.count[:, 0].max())
    examples = f"On {count} example{'' if count == 1 else 's'}"
    if len(board.rows) == 1:
        return f"{examples}, {board.titles[0]} has {title} {board.mean[0, 0]:.3g}; there is no other method to compare."
    undecided = _explain_ties(board, leaders, title)
    if undecided:
        return f"{examples}, {undecided}"
    means = _join_names([f"{board.mean[row, 0]:.3f}" for row in leaders], ", ")
    sentence = f"{examples}, {_are_best(board, leaders)} by {title} ({means}){_format_cost(board, leaders)}."
    if len(leaders) > 1:
        sentence += _format_need(board)
    if at_chance := np.flatnonzero(board.is_at_chance).tolist():
        sentence += f" {_are(board, at_chance, CHANCE)}."
    return " ".join([sentence, *_describe_other_settings(board, leaders)])


def _describe_other_settings(board: Leaderboard, leaders: Sequence[int]) -> list[str]:
    """Return for each other setting of the first metric, such as another way of removal, what the verdict is there."""
    metric, first = board.cards[0].name.partition("?")[0], set(np.flatnonzero(board.is_at_chance).tolist())
    sentences: list[str] = []
    for column, card in enumerate(board.cards):
        name, _, setting = card.name.partition("?")
        if column == 0 or name != metric:
            continue
        best = np.flatnonzero(board.best[:, column]).tolist()
        chance = set(np.flatnonzero(board.chance[:, column]).tolist())
        gone, new = sorted(set(leaders) - set(best)), sorted(set(best) - set(leaders))
        changes: list[str] = []
        if not best:
            changes.append("no method is significantly worse than the best")
        elif len(gone) == len(leaders):
            changes.append(_are_best(board, best))
        else:
            changes += [
                _are(board, rows, f"{how} among the best") for rows, how in ((gone, "not"), (new, "also")) if rows
            ]
        if lost := sorted(chance - first):
            changes.append(_are(board, lost, CHANCE))
        if gained := sorted(first - chance):
            changes.append(_are(board, gained, "better than random"))
        sentences.append(f"With {setting}: {'; '.join(changes)}." if changes else f"The same holds with {setting}.")
    return sentences


def _explain_ties(board: Leaderboard, leaders: Sequence[int], title: str) -> str:
    """Return why no method is best, as the end of a sentence; empty if one is."""
    first = f"{board.titles[0]} has {board.mean[0, 0]:.3f}"
    if np.abs(board.mean[:, 0]).max() < NEGLIGIBLE:
        # Predictions of a model that ignores its input still differ by tiny amounts, which a test finds significant.
        return f"{title} is 0.000 for all methods: look at the model's accuracy first."
    if not leaders:
        return f"no method is significantly worse than the best by {title}; {first}.{_format_need(board)}"
    if any(board.rows[row].partition("?")[0] == CONTROL for row in leaders):
        return f"no method is better than random by {title}; {first}."
    return ""


def find_leaders(board: Leaderboard) -> list[int]:
    """Return the rows that are best by the first metric or tied with the best; empty if all methods are tied."""
    return [int(row) for row in np.flatnonzero(board.best[:, 0])]


def format_disagreements(board: Leaderboard) -> list[str]:
    """Return a sentence for each other metric whose best methods all differ from the first metric's."""
    if not board.cards:
        return []
    leaders, lines = find_leaders(board), []
    for column, card in list(enumerate(board.cards))[1:]:
        # The verdict itself speaks of other settings of its metric.
        if card.name.partition("?")[0] == board.cards[0].name.partition("?")[0]:
            continue
        best = np.flatnonzero(board.best[:, column]).tolist()
        if best and not set(best) & set(leaders):
            lines.append(f"By {card.heading}, {_are_best(board, best)}.")
    return lines


def _are_best(board: Leaderboard, rows: Sequence[int]) -> str:
    return _are(board, rows, "tied best" if len(rows) > 1 else "best")


def _are(board: Leaderboard, rows: Sequence[int], what: str) -> str:
    return f"{_join_names([board.titles[row] for row in rows])} {'are' if len(rows) > 1 else 'is'} {what}"


def _format_need(board: Leaderboard) -> str:
    """Return a sentence that says how many examples would separate the first two methods; empty if these could."""
    need, count = board.separating, board.count[:, 0].max()
    # The variance of a difference is itself unknown from a few examples.
    if count < FEWEST_EXAMPLES or not need > count:
        return ""
    if need > MOST_EXAMPLES:
        return f" More than {MOST_EXAMPLES:,} examples would be needed to separate the first two."
    # Two digits: the estimate of a difference this uncertain has no more.
    rounded = float(f"{need:.2g}")
    return f" About {rounded:,.0f} examples would separate the first two."


def _seconds(board: Leaderboard) -> list[float]:
    for column, card in enumerate(board.cards):
        if card.name == "seconds":
            return [float(value) for value in board.mean[:, column]]
    return [float("nan")] * len(board.rows)


def _format_cost(board: Leaderboard, leaders: Sequence[int]) -> str:
    """Return the cost of the cheapest leader, relative to the most expensive one; empty if it was not measured."""
    seconds = _seconds(board)
    known = sorted((row for row in leaders if seconds[row] > 0), key=lambda row: seconds[row])
    if not known:
        return ""
    cheap, expensive = known[0], known[-1]
    if len(leaders) == 1:
        return f"; it takes {seconds[cheap]:.2g} s per example"
    times = round(seconds[expensive] / seconds[cheap])
    # Measured times vary: a ratio that rounds to 1 is no difference.
    if times < 2:
        return f"; they cost about the same, {seconds[cheap]:.2g} s per example"
    share = SHARES[times] if times < len(SHARES) else f"1/{times}"
    return f"; {board.titles[cheap]} costs {share} of {board.titles[expensive]}, {seconds[cheap]:.2g} s per example"


def _join_names(names: Sequence[str], last: str = " and ") -> str:
    """Return the names with commas, `last` before the last one; of many the first NAMED and the number of others."""
    shown = list(names) if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} more"]
    if len(shown) > 1:
        return ", ".join(shown[:-1]) + last + shown[-1]
    return shown[0]


ABSENT = "–"
BEST = "the best of their column, or not significantly worse (paired bootstrap over the same examples, Holm, 5 %)"
INTERVAL = f"its {CONFIDENCE:.0f} % bootstrap interval"


def make_board_table(board: Leaderboard, head: str = "method", names: Sequence[str] = ()) -> Table:
    """Return the table: means with intervals, the best bold, methods at chance marked; `names`: other than the titles.

    A narrow terminal keeps the first metric, and seconds as long as two columns fit.
    """
    rows = []
    for name, title, at_chance in zip(board.rows, names or board.titles, board.is_at_chance, strict=True):
        rows.append([Cell(title, value=title, tip=name, note=CHANCE if at_chance else "")])
    for column in range(len(board.cards)):
        for row, cell in zip(rows, _make_column(board, column), strict=True):
            row.append(cell)
    columns = range(len(board.cards))
    important = sorted(columns, key=lambda column: (column > 0, board.cards[column].name != "seconds"))
    return Table(
        [head, *(card.title for card in board.cards)],
        rows,
        keys=board.rows,
        important=[column + 1 for column in important],
        meanings=(BEST, INTERVAL, "n if a metric is defined for some examples only"),
    )


def choose_decimals(column: Floats) -> list[int]:
    """Return the number of decimals for each number of a column.

    If all are below 10, they share the decimals that give the largest three significant digits (at least 3 decimals);
    otherwise each number gets three significant digits.
    """
    magnitudes = np.where(np.isfinite(column), np.abs(column), 0.0)
    largest = float(magnitudes.max(initial=0.0))
    if largest < 10:
        return [max(3, _decimals_for(largest))] * len(magnitudes)
    # Shared decimals would show milliseconds as 0 beside minutes.
    return [_decimals_for(value) for value in magnitudes.tolist()]


def _decimals_for(value: float) -> int:
    if value == 0 or not math.isfinite(value):
        return 3
    return min(8, max(0, 2 - math.floor(math.log10(value))))


def _make_column(board: Leaderboard, column: int) -> list[Cell]:
    examples = int(board.count.max(initial=0))
    means = board.mean[:, column]
    digits = choose_decimals(means)
    if board.cards[column].family == "cost":
        # Costs vary from run to run: two significant digits are all that can be reproduced.
        digits = [min(9, max(0, _decimals_for(value) - 1)) for value in means.tolist()]
    cells = []
    for row, places in enumerate(digits):
        mean, low, high = (float(array[row, column]) for array in (board.mean, board.low, board.high))
        text, interval = ABSENT, ""
        if math.isfinite(mean):
            text = f"{mean:.{places}f}"
            interval = f"{low:.{places}f} … {high:.{places}f}" if math.isfinite(low) else ""
        count = int(board.count[row, column])
        note = f"n={count}" if count < examples else ""
        cells.append(Cell(text, int(board.best[row, column]), interval=interval, note=note, value=mean))
    return cells


def render_board_markdown(board: Leaderboard) -> str:
    """Return the verdict, a pipe table of means and their 95 % intervals, and a legend."""
    names = []
    for name, at_chance in zip(board.rows, board.is_at_chance, strict=True):
        names.append(f"{name} ({CHANCE})" if at_chance else name)
    legend = f"Bold numbers are {BEST}; beside each is {INTERVAL}."
    return f"{format_verdict(board)}\n\n{make_board_table(board, names=names).to_markdown()}\n\n{legend}\n"


def render_board_latex(board: Leaderboard, caption: str = "", label: str = "") -> str:
    """Return a `table` environment with means and 95 % intervals; `caption` and `label` are plain text.

    The number of examples and the meaning of brackets and bold numbers are added to the caption.
    """
    count = int(board.count.max(initial=0))
    note = f"Means over {count} example{'' if count == 1 else 's'}, with 95 % bootstrap intervals in brackets."
    note = f"{note} Bold numbers are {BEST}."
    if caption:
        note = f"{caption.rstrip('.')}. {note}"
    return f"% \\usepackage{{booktabs}}\n{make_board_table(board, 'Method').to_latex(note, label)}"


def render_board_csv(board: Leaderboard) -> str:
    """Return one line per method: `method`, then `<metric>_mean`, `_low`, `_high`, `_count`; NaN is empty."""
    ends = {"_mean": board.mean, "_low": board.low, "_high": board.high, "_count": board.count}
    return format_csv("method", board.rows, [card.name for card in board.cards], ends)


def make_difference_table(changes: pd.DataFrame, titles: Mapping[str, str] | None = None) -> Table:
    """Return the table of what changed from one model to another, significant differences bold.

    Args:
        changes: the columns of `Comparison.difference`.
        titles: of methods and metrics, by name; default: the names.
    """
    titles, rows = titles or {}, []
    for row in changes.to_dict("records"):
        cells = [
            Cell(titles.get(row[name], row[name]), value=row[name], tip=row[name]) for name in ("method", "metric")
        ]
        cells += [Cell(f"{row[name]:.3f}", value=row[name]) for name in ("before", "after")]
        change, rank = row["difference"], BOLD if row["p"] <= LEVEL else 0
        cells.append(Cell(f"{change:+.3f}", rank, value=change))
        cells.append(Cell(f"{row['low']:+.3f}…{row['high']:+.3f}", value=row["low"]))
        cells.append(Cell(ABSENT if math.isnan(row["p"]) else f"{row['p']:.2g}", value=row["p"]))
        rows.append(cells)
    head = ("method", "metric", "before", "after", "difference", "95 % interval", "p")
    return Table(head, rows, texts=2, keys=changes["method"].tolist(), meanings=("significant differences", "", ""))


def summarize_difference(changes: pd.DataFrame) -> str:
    """Return in one sentence how many of the differences are significant."""
    p = changes["p"].dropna()
    return (
        f"{(p <= LEVEL).sum()} of {len(p)} differences are significant "
        "(paired bootstrap over the same examples, Holm, 5 %)."
    )
