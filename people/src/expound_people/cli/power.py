"""`expound people power`: how many annotators a human study needs."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from expound.cli.shared import options
from expound.cli.shared.console import console
from expound.errors import ExpoundError, check_choice

KINDS = ("rank", "simulate", "counterfactual")


def power(
    effect: Annotated[
        float,
        typer.Option(
            help="rank: how often the better of two neighboring methods is ranked first, such as 0.65. simulate: how "
            "much an explanation raises the share of correct guesses, such as 0.1."
        ),
    ],
    people: Annotated[str, typer.Option(help="Numbers of annotators, comma-separated.")] = "10,20,40,60",
    kind: Annotated[str, typer.Option(help="rank, simulate or counterfactual.")] = "rank",
    methods: Annotated[int, typer.Option(min=1, help="Methods compared.")] = 3,
    items: Annotated[int, typer.Option(min=1, help="Examples per annotator.")] = 10,
    screen: Annotated[int, typer.Option(min=2, help="Explanations per screen.")] = 4,
    baseline: Annotated[float, typer.Option(help="simulate: share of correct guesses without explanations.")] = 0.6,
    person: Annotated[float, typer.Option(help="Standard deviation of annotators, in log odds.")] = 0.5,
    item: Annotated[float, typer.Option(help="Standard deviation of examples, in log odds.")] = 0.5,
    runs: Annotated[int, typer.Option(min=10, help="Simulated studies for each number of annotators.")] = 200,
    seed: options.Seed = 0,
) -> None:
    """Estimate how many annotators a human study needs, by simulating studies with a known effect.

    Power is the share of simulated studies that find the complete order (rank) or the gain of every method (simulate)
    at a significance level of 5 %; 80 % is customary. Width is the width of the 95 % interval of a difference in log
    odds (rank) or of a gain (simulate).

    Example: expound people power --effect 0.65 --methods 3 --items 10 --people 20,40,60
    """
    from expound.reports.table import Table
    from expound_people.analysis.power import StudyDesign
    from expound_people.analysis.power import simulate_power as estimate_power

    check_choice("kind of study", kind, KINDS)
    counts = options.split_ids(people) or []
    if not counts or not all(each.isdecimal() and len(each) < 6 for each in counts):
        raise ExpoundError(f"expected numbers of annotators such as 20,40,60, got {people!r:.60}")
    if kind == "rank" and methods < 2:
        raise ExpoundError("a ranking needs at least 2 methods")
    design = StudyDesign(effect, kind, methods, items, screen, baseline, person, item)
    rows = []
    for count in counts:
        estimate = estimate_power(design, int(count), runs, seed)
        width = "–" if math.isnan(estimate.width) else f"{estimate.width:.3f}"
        rows.append((count, f"{100 * estimate.power:.0f} %", width))
    console().print(Table(("people", "power", "width"), rows))
