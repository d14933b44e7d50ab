"""The result of a comparison: values per example, and the tables and pages rendered from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from expound.data.atomic_files import atomic_file
from expound.data.cards import MetricCard
from expound.data.readers.exchanges import EXCHANGE
from expound.errors import ExpoundError
from expound.evaluation.compare.judge import BY_LAYER
from expound.evaluation.compare.shards import (
    EXAMPLES,
    mark_finished,
    read_config,
    read_examples,
    read_frames,
    write_examples,
)
from expound.explainers.registry import make_titles
from expound.metrics import cards as metric_cards
from expound.metrics.registry import PEAK_MEMORY, SECONDS
from expound.models.generation.prompt import name_sources
from expound.reports.explanations import Explanation, Explanations
from expound.reports.figures.curves import Curve, plot_curves
from expound.reports.highlighted.pieces import Spans
from expound.reports.highlighted.regions import encode_data_url
from expound.reports.pages.html import ExampleView, render_leaderboard_html, render_report
from expound.reports.tables.board_table import (
    format_verdict,
    make_board_table,
    render_board_csv,
    render_board_latex,
    render_board_markdown,
)
from expound.reports.tables.leaderboard import (
    CONTROL,
    Counts,
    Floats,
    Leaderboard,
    bootstrap_intervals,
    compute_win_rates,
    draw_resamples,
    make_leaderboard,
)
from expound.reports.tables.significance import adjust_p_values, metric_summands, paired_test
from expound.reports.text import replace_control_characters

SHOWN = 20
"""Examples on a page: each is shown once per method."""
RESAMPLES = 2000
"""Resamples of the examples for the difference of two comparisons."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods judged on the same examples.

    Attributes:
        results: one row per example and method, one column per metric; NaN for an undefined metric.
        curves: one row per example, method, metric and budget `x` (or layer).
        attributions: of every example by every method, in the order of `results`.
        cards: the metrics.
        examples: the rows that were compared.
        config: the resolved configuration.
    """

    results: pd.DataFrame
    curves: pd.DataFrame
    attributions: Explanations
    cards: Sequence[MetricCard]
    examples: Sequence[dict[str, Any]]
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def leaderboard(self) -> Leaderboard:
        """Mean of each metric for each method, with 95 % bootstrap intervals over examples."""
        # Peak memory is measured on GPUs only.
        cards = [card for card in self.cards if card != PEAK_MEMORY or self.results[card.name].notna().all()]
        return make_leaderboard(self.results, cards, titles=self.titles, seed=self.config.get("seed", 0))

    @property
    def titles(self) -> dict[str, str]:
        """The methods' titles for people, by name; a name that the user gave is its own title."""
        return make_titles(dict.fromkeys(map(str, self.results["method"])))

    def difference(self, other: Comparison) -> pd.DataFrame:
        """Return the change since another comparison of the same examples, of every metric and method that both have.

        Values are paired by example; costs are left out.

        Columns: method, metric, before, after (means over the `examples` for which both are defined), difference, low,
        high (its 95 % bootstrap interval), p (two-sided paired bootstrap, Holm over all rows, at least 2^(1-n) for n
        examples; NaN for `random`, which is a control and not tested), examples.

        Raises:
            ExpoundError: other examples or targets, or no method and metric with the same settings in both.
        """
        if [_question_key(row) for row in self.examples] != [_question_key(row) for row in other.examples]:
            raise ExpoundError(
                "the two comparisons are of different examples: give both the same --data, --split and --limit"
            )
        if self.config["target"] != other.config["target"]:
            raise ExpoundError(f"one comparison explains {self.config['target']}, the other {other.config['target']}")
        metrics = [
            name for name in _find_common(self, other, "metrics") if name in self.results and name in other.results
        ]
        methods = _find_common(self, other, "methods")
        if not methods or not metrics:
            raise ExpoundError("the two comparisons have no method and metric with the same settings in common")
        # Shared resamples make the intervals of all rows comparable.
        resamples = draw_resamples(len(self.examples), RESAMPLES, self.config.get("seed", 0))
        rows = []
        for method in methods:
            for metric in metrics:
                after, before = _metric_values(self, method, metric), _metric_values(other, method, metric)
                rows.append({"method": method, "metric": metric} | compute_change(after, before, resamples))
        frame = pd.DataFrame(rows)
        # A test of the control would cost the tests of the methods some of their power.
        frame.loc[frame["method"].str.partition("?")[0] == CONTROL, "p"] = np.nan
        return frame.assign(p=adjust_p_values(frame["p"].tolist(), "holm"))

    @property
    def win_rates(self) -> pd.DataFrame:
        """How often each method is better than `random` on the same example, see `compute_win_rates`."""
        return compute_win_rates(self.results, self.cards)

    def to_pandas(self) -> pd.DataFrame:
        """Return the table of means, methods × metrics."""
        board = self.leaderboard
        return pd.DataFrame(board.mean, index=board.rows, columns=[card.name for card in board.cards])

    def __repr__(self) -> str:
        board = self.leaderboard
        return f"{replace_control_characters(format_verdict(board))}\n{make_board_table(board).to_text()}"

    def _repr_html_(self) -> str:
        return render_leaderboard_html(self.leaderboard)

    def to_markdown(self) -> str:
        """Return the verdict and the table of means with intervals, best in bold."""
        return render_board_markdown(self.leaderboard)

    def to_latex(self, caption: str = "", label: str = "") -> str:
        """Return the table without costs, for the package booktabs; the default caption is the verdict."""
        board = self.leaderboard
        return render_board_latex(board.without_costs, caption or format_verdict(board), label)

    def plot(self) -> Figure:
        """Return the faithfulness curves as a matplotlib figure, one panel per metric.

        Raises:
            ExpoundError: no metric of the comparison has a curve.
        """
        curves = self._mean_curves()
        if not curves:
            raise ExpoundError(
                "there are no curves: compare by a metric over several budgets, as aopc_comprehensiveness"
            )
        titles = self.titles
        return plot_curves([curve._replace(method=titles[curve.method]) for curve in curves])

    def to_html(
        self,
        path: str | Path | None = None,
        *,
        title: str = "Comparison of explanations",
        against: Comparison | None = None,
    ) -> str:
        """Return one self-contained page: sortable table, curves, and the same examples explained by every method.

        Args:
            path: also write the page to this file.
            title: the page's title.
            against: an earlier comparison of the same examples; the page begins with what changed since.

        Raises:
            ExpoundError: `against` is about other examples, targets, methods and metrics.
        """
        changes = None if against is None else self.difference(against)
        subject = self._subject()
        if against is not None:
            subject["before"] = against._subject().get("model", "another model")
        page = render_report(
            title, self.leaderboard, self._mean_curves(), self._example_views(), self.config, subject, changes
        )
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def save(self, directory: str | Path) -> Path:
        """Write `results`, `curves`, `examples` (Parquet), `attributions/`, `table.csv`, `table.tex`, `report.html`.

        The record `expound_run.json` is written last. Returns the folder.
        """
        folder = Path(directory)
        for name, frame in (("results", self.results), ("curves", self.curves)):
            with atomic_file(folder / f"{name}.parquet") as fresh:
                frame.to_parquet(fresh, index=False)
        write_examples(folder / EXAMPLES, self.examples)
        self.attributions.save(folder / "attributions")
        board = self.leaderboard
        texts = {"table.csv": render_board_csv(board), "table.tex": self.to_latex(), "report.html": self.to_html()}
        for name, text in texts.items():
            with atomic_file(folder / name) as fresh:
                fresh.write_text(text, encoding="utf-8")
        mark_finished(folder, self.config)
        return folder

    @classmethod
    def load(cls, directory: str | Path) -> Comparison:
        """Return the comparison in a folder that `expound compare` or `save` wrote.

        Raises:
            ExpoundError: the folder holds no finished comparison.
        """
        folder = Path(directory)
        config = read_config(folder)
        results, curves = read_frames(folder)
        known = metric_cards()
        cards = [name_card(known[params["metric"]], column) for column, params in config["metrics"].items()]
        examples = read_examples(folder / EXAMPLES)
        attributions = Explanations.load(folder / "attributions")
        return cls(results, curves, attributions, [*cards, SECONDS, PEAK_MEMORY], examples, config)

    def _subject(self) -> dict[str, str]:
        """Return what was explained, by name: the model, its data, and how often its predictions are right."""
        subject = dict[str, str]()
        if model := self.config.get("model") or self.config.get("model_type"):
            subject["model"] = str(model)
        for name, key in (("data", "spec"), ("split", "split")):
            if value := self.config.get("dataset", {}).get(key):
                subject[name] = value
        if "dtype" in self.config:
            subject["precision"] = f"{self.config['dtype']}: small differences of scores need a model in float32"
        right = []
        # All methods explain the same predictions, so those of the first are counted.
        for item in list(self.attributions)[: self.results["example"].nunique()]:
            if item.prediction and "label_name" in self.examples[item.index]:
                right.append(item.prediction.text == self.examples[item.index]["label_name"])
        if right:
            subject["accuracy"] = f"{sum(right) / len(right):.3f} ({sum(right)} of {len(right)} examples)"
        return subject

    def _mean_curves(self) -> list[Curve]:
        """Return the curves' means over examples with 95 % intervals."""
        resamples = draw_resamples(self.results["example"].nunique(), 1000, self.config.get("seed", 0))
        curves, headings = [], {card.name: card.heading for card in self.cards}
        for (method, metric), part in self.curves.groupby(["method", "metric"], sort=False):
            grid = part.pivot_table(index="x", columns="example", values="value", dropna=False)
            values = grid.to_numpy()[None]
            # A curve may exist for some examples only: the resamples are mapped to their number.
            examples = values.shape[2]
            low, high = bootstrap_intervals(values, resamples[:, :examples] % examples)
            mean = grid.mean(axis=1).to_numpy()
            x, label = grid.index.to_numpy(), "layer"
            if metric != BY_LAYER:
                x, label = x * 100, "% of the input"
            curves.append(
                Curve(str(method), headings.get(str(metric), str(metric)), x, mean, low[0], high[0], x_label=label)
            )
        return curves

    def _example_views(self) -> list[ExampleView]:
        by_method: dict[int, dict[str, Explanation]] = {}
        for method, item in zip(self.results["method"], self.attributions, strict=False):
            by_method.setdefault(item.index, {})[method] = item
        views = []
        for index, attributions in sorted(by_method.items())[:SHOWN]:
            row, first = self.examples[index], next(iter(attributions.values()))
            view = ExampleView(
                index=index,
                texts=first.texts,
                label=row.get("label_name"),
                prediction=first.prediction.text if first.prediction else "",
                rationale=_rationale_spans(row, first.texts),
                attributions=attributions,
                picture=encode_data_url(row["image"]) if "image" in row else "",
            )
            views.append(view)
        return views


def name_card(card: MetricCard, column: str) -> MetricCard:
    """Return a metric's card for a column of the results, whose parameters, if it has any, are part of the heading."""
    setting = column.partition("?")[2]
    return replace(card, name=column, label=f"{card.heading}, {setting}" if setting else card.label)


def _rationale_spans(row: Mapping[str, Any], texts: Sequence[str]) -> list[Spans | None]:
    """Return the spans that people marked in each text; for generated text, each source that is evidence as a whole."""
    evidence = row.get("evidence")
    if evidence is None:
        return [row.get(name) for name in ("rationale", "rationale_pair")][: len(texts)]
    sources = name_sources(row.get("sources"))
    needed = {sources[name].strip() for name in sources.keys() & evidence}
    spans: list[Spans | None] = []
    for text in texts:
        spans.append([(0, len(text))] if text in needed else [])
    return spans


def _question_key(row: Mapping[str, Any]) -> list[Any]:
    """Return the question of a row without its label and response, which differ between models."""
    key = [row.get(name) for name in ("text", "text_pair", *EXCHANGE) if name != "response"]
    if row.get("image") is not None:
        key.append(row["image"].tobytes())
    return key


def _find_common(new: Comparison, old: Comparison, what: str) -> list[str]:
    """Return the names of methods or metrics with the same settings in both."""
    common = []
    for name, params in new.config[what].items():
        other = old.config[what].get(name)
        # Learned methods are trained for one model, so the digests of their weights differ.
        if other is not None and {**params, "digest": None} == {**other, "digest": None}:
            common.append(name)
    return common


def compute_change(after: Floats, before: Floats, resamples: Counts) -> dict[str, Any]:
    """Return the change between two runs' values [N] of the same examples: the columns of `Comparison.difference`."""
    defined = np.isfinite(after) & np.isfinite(before)
    count, change = int(defined.sum()), np.where(defined, after - before, np.nan)
    if not count:
        return dict.fromkeys(("before", "after", "difference", "low", "high", "p"), np.nan) | {"examples": 0}
    low, high = bootstrap_intervals(change[None, None], resamples)
    one, other = metric_summands(np.where(defined, after, np.nan)), metric_summands(np.where(defined, before, np.nan))
    # The bootstrap of few pairs is too sure: a sign test of n pairs has no p-value below 2^(1-n).
    p = max(paired_test([one], [other], "bootstrap"), 2.0 ** (1 - count))
    row = {"before": before[defined].mean(), "after": after[defined].mean(), "difference": change[defined].mean()}
    return row | {"low": float(low[0, 0]), "high": float(high[0, 0]), "p": p, "examples": count}


def _metric_values(side: Comparison, method: str, metric: str) -> Floats:
    """Return a metric's value for each example, in the order of the examples."""
    part = side.results[side.results["method"] == method].set_index("example")[metric]
    return part.reindex(range(len(side.examples))).to_numpy(dtype=np.float64)
