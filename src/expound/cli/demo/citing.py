"""`expound demo --task generation`: how often each method cites the notes that an answer needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from expound.cli.shared.console import console, say, show_leaderboard
from expound.cli.train.options import require_finished

if TYPE_CHECKING:
    from expound.evaluation.compare.comparison import Comparison
    from expound.models.generation.model import GeneratingModel
    from expound.reports.table import Table

ASKED, CITED = 300, 3
"""Number of questions for the accuracy, and number of answers whose citations are printed."""


def run(
    folder: Path, methods: list[str] | None, limit: int, seed: int, device: str | None, scale: float, quiet: bool
) -> None:
    """Train the model unless it exists, print its accuracy, and compare the citations of each method."""
    import expound
    from expound.cli.demo.answering_model import train_answering_model
    from expound.training.loop.evaluation import match_responses

    trained = train_answering_model(
        folder / "answering", seed=seed, device=device, scale=scale, show_progress=not quiet
    )
    require_finished(trained)
    model: Any = expound.load(trained.output_dir, device=device, task="generation")
    asked = expound.load_data(
        "generated", "dev", task="retrieval", seed=seed, limit=max(3, round(min(1, scale) * ASKED))
    )
    right = match_responses(model, list(asked)).mean()
    say(f"{100 * right:.1f} % of {len(asked)} new questions are answered exactly right")
    comparison = expound.compare(
        model,
        expound.load_data("generated", "test", task="retrieval", seed=seed, limit=limit),
        methods,
        unit="source",
        seed=seed,
        output_dir=folder / "citations",
        show_progress=False if quiet else None,
    )
    show_leaderboard(comparison.leaderboard, folder / "citations")
    console().print(_by_kind(comparison))
    say("This model is a toy: on real language models the last layer's attention is among the worst of these methods.")
    _show_citations(model, comparison)


def _by_kind(comparison: Comparison) -> Table:
    """Return the recall of the needed notes among the top-ranked ones, for each kind of question."""
    from expound.data.generated.retrieval import KINDS
    from expound.reports.table import Table

    rows = []
    boards = [comparison.leaderboard_of("kind", kind) for kind in KINDS]
    column = [card.name for card in boards[0].cards].index("recall_at_k")
    for method in comparison.leaderboard.rows:
        cells = [comparison.titles[method]]
        for board in boards:
            at = board.rows.index(method), column
            cells.append(f"{board.mean[at]:.2f}  {board.low[at]:.2f}…{board.high[at]:.2f}")
        rows.append(cells)
    return Table(("method", *KINDS), rows, "Recall of the needed notes, 95 % interval")


def _show_citations(model: GeneratingModel, comparison: Comparison) -> None:
    """Print answers sentence by sentence, with the notes that the best method cites and those that were needed."""
    import expound

    best = comparison.leaderboard.rows[0]
    rows = []
    for example in comparison.examples[:CITED]:
        rows.append({name: value for name, value in example.items() if name != "kind"})
    say(f"{comparison.titles[best]} cites:")
    results = expound.attribute(model, rows, best, "sentences", unit="source")
    for row, result in zip(rows, results, strict=True):
        for text, sources in result.citations(k=1):
            say(f"  {text.strip()} ← {sources[0][0]} (needed: {', '.join(row['evidence'])})")
