"""The order in which the runs of a study start, and the runs that a selection of them needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from expound_papers.study.parts import Runs, StudyRun


def sort_runs(
    runs: Sequence[StudyRun],
    trainings: Collection[str],
    models: Collection[str],
    recipes: Mapping[str, Runs],
    judgements: Collection[str],
) -> list[StudyRun]:
    """Return runs by training data, model, recipe and seed, judgements last; what a run needs comes before it."""
    order = {"training": list(trainings), "model": list(models), "recipe": list(recipes)}
    names = list(judgements)

    def place(run: StudyRun) -> tuple[int, ...]:
        at = [known.index(getattr(run, field)) if known else 0 for field, known in order.items()]
        seed = recipes[run.recipe].seeds.index(run.seed)
        return (*at, seed, names.index(run.judgement) if run.judgement else -1)

    # Needs come first, also those on other training data.
    ordered, by_key = dict[int, StudyRun](), {run.cell.key: run for run in runs}

    def add(run: StudyRun) -> None:
        if id(run) not in ordered:
            for key in run.cell.needs:
                add(by_key[key])
            ordered[id(run)] = run

    for run in sorted(runs, key=place):
        add(run)
    return list(ordered.values())


def select_runs(runs: Sequence[StudyRun], pattern: str) -> list[StudyRun]:
    """Return the runs whose title contains a pattern (with * and ?), and what they need."""
    selected = set[str]()
    for run in runs:
        # Also as plain text: a title may contain brackets, which a pattern would read as a set of characters.
        if pattern in run.title or fnmatchcase(run.title, f"*{pattern}*"):
            selected.add(run.cell.key)
    needs = {run.cell.key: run.cell.needs for run in runs}
    pending = list(selected)
    while pending:
        added = set(needs.get(pending.pop(), ())) - selected
        selected |= added
        pending += added
    return [run for run in runs if run.cell.key in selected]
