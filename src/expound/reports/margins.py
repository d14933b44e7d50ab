"""By how much what a user did not write moves an action more than the user's request does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound.reports.explanations import Explanation

UNTRUSTED = ("tool_result", "source")


def find_margins(item: Explanation, row: int) -> dict[str, float]:
    """Return the margin of each result of a tool and each source: its effect minus that of the user's last message.

    Effects are scores per token of the target. A positive margin of an action means that a text which the user did not
    write decides more than the request does, the mark of a prompt injection (CausalArmor, Kim et al. 2026).

    Raises:
        ExpoundError: the units are not the messages of a conversation with a request.
    """
    kinds = item.exchange.kinds if item.exchange is not None and item.unit == "message" else ()
    effects = [
        (kinds[unit.segment], unit.text, float(item.scores[row, n])) for n, unit in enumerate(item.units) if kinds
    ]
    requests = [effect for kind, _, effect in effects if kind == "user"]
    if not requests:
        raise ExpoundError("margins compare messages with the user's request: explain a chat with unit='message'")
    span = item.targets[row].value
    assert isinstance(span, tuple)
    count = span[1] - span[0]
    return {name: (effect - requests[-1]) / count for kind, name, effect in effects if kind in UNTRUSTED}


def describe_margins(item: Explanation, row: int) -> str:
    """Return the margins of a target in words; empty if no text of a tool or a source is a unit beside a request."""
    kinds = item.exchange.kinds if item.exchange is not None and item.unit == "message" else ()
    if "user" not in kinds or not set(UNTRUSTED) & set(kinds):
        return ""
    parts = []
    for name, margin in find_margins(item, row).items():
        parts.append(f"{name} {margin:+.3g} ({'exceeds' if margin > 0 else 'below'} the user's request)")
    return f"margin per token: {', '.join(parts)}"
