"""A leaderboard in sentences: which methods are best, which are tied with them, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from expound.reports.tables.leaderboard import CHANCE, CONTROL, Leaderboard

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
    at_chance = [name for name, chance in zip(board.titles, board.chance, strict=True) if chance]
    if not at_chance:
        return sentence
    return f"{sentence} {_join_names(at_chance)} {'is' if len(at_chance) == 1 else 'are'} {CHANCE}."


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
        best = np.flatnonzero(board.best[:, column]).tolist()
        if best and not set(best) & set(leaders):
            lines.append(f"By {card.heading}, {_are_best(board, best)}.")
    return lines


def _are_best(board: Leaderboard, rows: Sequence[int]) -> str:
    return f"{_join_names([board.titles[row] for row in rows])} {'are tied best' if len(rows) > 1 else 'is best'}"


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
