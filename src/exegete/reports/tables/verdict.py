"""A leaderboard in a sentence that its numbers carry: which method is best, what ties with it, what that costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exegete.reports.tables.cells import CHANCE
from exegete.reports.tables.leaderboard import CONTROL, Leaderboard

NAMED = 4
SHARES = ("", "", "half", "a third", "a quarter", "a fifth", "a sixth", "a seventh", "an eighth", "a ninth", "a tenth")


def format_verdict(board: Leaderboard) -> str:
    """Which methods are best by the first metric, which tie, and their cost; empty without methods or metrics.

    As "On 200 examples, decompx_linear and occlusion are tied best by AOPC (0.41, 0.40); …".
    """
    if not board.rows or not board.cards or not np.isfinite(board.mean[0, 0]):
        return ""
    leaders, title = find_leaders(board), board.cards[0].heading
    count = int(board.count[:, 0].max())
    on = f"On {count} example{'' if count == 1 else 's'}"
    if len(board.rows) == 1:
        return f"{on}, {board.titles[0]} has {title} {board.mean[0, 0]:.3g}; there is no other method to compare."
    if not leaders:
        return f"{on}, no method is told apart from the best by {title}; {board.titles[0]} has {board.mean[0, 0]:.3f}."
    if _is_control_leading(board, leaders):
        return f"{on}, no method is better than random by {title}; {board.titles[0]} has {board.mean[0, 0]:.3f}."
    figures = _join_names([f"{board.mean[row, 0]:.3f}" for row in leaders], ", ")
    are = "are tied best" if len(leaders) > 1 else "is best"
    sentence = f"{on}, {_join_names([board.titles[row] for row in leaders])} {are} by {title} ({figures})"
    weak = [name for name, chance in zip(board.titles, board.chance, strict=True) if chance]
    said = f" {_join_names(weak)} {'is' if len(weak) == 1 else 'are'} {CHANCE}." if weak else ""
    return f"{sentence}{_format_cost(board, leaders)}.{said}"


def find_leaders(board: Leaderboard) -> list[int]:
    """The rows that are best by the first metric or not told apart from the best; none where all are."""
    return [int(row) for row in np.flatnonzero(board.best[:, 0])]


def format_disagreements(board: Leaderboard) -> list[str]:
    """A sentence for each other metric whose best methods are none of the verdict's."""
    leaders, lines = find_leaders(board) if board.cards else [], []
    for column, card in list(enumerate(board.cards))[1:]:
        best = np.flatnonzero(board.best[:, column]).tolist()
        if best and not set(best) & set(leaders):
            are = "are tied best" if len(best) > 1 else "is best"
            lines.append(f"By {card.heading}, {_join_names([board.titles[row] for row in best])} {are}.")
    return lines


def _is_control_leading(board: Leaderboard, leaders: Sequence[int]) -> bool:
    return any(board.rows[row].partition("?")[0] == CONTROL for row in leaders)


def _seconds(board: Leaderboard) -> list[float]:
    column = next((at for at, card in enumerate(board.cards) if card.name == "seconds"), None)
    return [float("nan")] * len(board.rows) if column is None else board.mean[:, column].tolist()


def _format_cost(board: Leaderboard, leaders: Sequence[int]) -> str:
    """The cost of the cheapest of the best, beside the dearest of them."""
    seconds = _seconds(board)
    known = sorted((row for row in leaders if seconds[row] > 0), key=lambda row: seconds[row])
    if not known:
        return ""
    cheap, dear = known[0], known[-1]
    if len(leaders) == 1:
        return f"; it takes {seconds[cheap]:.2g} s an example"
    times = round(seconds[dear] / seconds[cheap]) if seconds[dear] > 0 else 0
    if times < 2:
        return f"; they cost about the same, {seconds[cheap]:.2g} s an example"
    share = SHARES[times] if times < len(SHARES) else f"1/{times}"
    return f"; {board.titles[cheap]} costs {share} of {board.titles[dear]}, {seconds[cheap]:.2g} s an example"


def _join_names(names: Sequence[str], last: str = " and ") -> str:
    """The names with commas between them, the last after `last`; of many the first few and how many more."""
    shown = list(names) if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} more"]
    return ", ".join(shown[:-1]) + last + shown[-1] if len(shown) > 1 else shown[0]
