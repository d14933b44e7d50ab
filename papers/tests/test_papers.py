"""Studies at paper scale hold the papers' tables and figures: rows, columns, data, seeds and settings."""

from __future__ import annotations

from functools import cache

from contents_of_papers import PAPERS
from expound_papers.study.loading import list_studies, load_study

KEYS = {"paper", "table", "rows", "columns", "seeds", "models", "sizes", "settings"}
OF_FIGURES = {"figure", "kind", "recipes", "explainers", "datasets"}
OURS = {
    "aml-any-length",
    "aml-defaults",
    "aml-defaults-seeds",
    "aml-defaults-sentences",
    "aml-movies",
    "aml-options",
    "aml-table-1-metrics",
    "aml-table-4-metrics",
    "aml-weights",
    "cite",
    "cite-classifiers",
    "cite-language-model",
    "defaults",
    "er-constrained",
    "er-cost",
    "er-films",
    "er-fresh",
    "er-rrr",
    "ivra-adapter-rates",
    "ivra-cost",
    "ivra-decoder",
    "ivra-defaults-sentences",
    "ivra-entailment-seeds",
    "ivra-longer",
    "ivra-longer-consistency",
    "ivra-longer-entailment",
    "ivra-longer-questions",
    "ivra-losses",
    "ivra-margins",
    "ivra-multiplier",
    "ivra-reviews",
    "ivra-sim-headroom",
    "ivra-simulatability",
    "language-models",
    "methods",
    "regex-any-length",
    "regex-reviews",
    "regex-seeds",
    "removal",
    "smat-attention",
    "smat-images-seeds",
    "smat-seeds",
}  # no table or figure of a paper


@cache
def build_paper_study(name):
    return load_study(name, "paper")


def list_titles(study, part, side):
    """The titles of a table's rows or columns once all its runs are done."""
    titles = set()
    for run in study.runs:
        for explainer in (run.explainers or {"": ""}) if run.dataset else ():
            fields = {name: getattr(run, name) for name in ("training", "model", "recipe", "dataset", "judgement")}
            fields["explainer"] = explainer
            if all(value in part.where.get(name, [value]) for name, value in fields.items()):
                for metric in part.metrics:
                    named = {**fields, "metric": metric}
                    values = [part.labels.get(named[field], named[field]) for field in getattr(part, side)]
                    titles.add(" / ".join(value for value in values if value))
    return titles


def test_the_table_is_the_papers():
    for name, wanted in PAPERS.items():
        study = build_paper_study(name)
        assert set(wanted) <= KEYS | OF_FIGURES
        if "rows" in wanted or "columns" in wanted:
            tables = study.tables
            part = tables[wanted.get("table", next(iter(tables)))]
            assert set(wanted.get("rows", ())) <= list_titles(study, part, "rows"), f"{name}: there may be rows of ours"
        if "columns" in wanted:
            assert list_titles(study, part, "columns") == set(wanted["columns"]), name
        if "models" in wanted:
            assert [model.source_for_seed(0) for model in study.models.values()] == wanted["models"], name


def test_data_seeds_and_settings_are_the_papers():
    for name, wanted in PAPERS.items():
        study = build_paper_study(name)
        for recipe, count in wanted.get("seeds", {}).items():
            assert len({run.seed for run in study.runs if run.recipe == recipe}) == count, (name, recipe)
        for dataset, count in wanted.get("sizes", {}).items():
            part = study.datasets[dataset].resolve()
            known = {**study.addresses["datasets"], **study.addresses["judged"]}[dataset]
            if "missing" not in known or part["limit"]:
                start, end = part.get("rows") or (0, part["limit"])
                assert known.get("rows", end and end - start) == count, (name, dataset)
        for recipe, settings in wanted.get("settings", {}).items():
            runs = [run for run in study.runs if run.recipe == recipe and not run.dataset]
            assert runs, (name, recipe)
            for config in (run.cell.config for run in runs):
                known = {**config, **config["arguments"], **config["parameters"]}
                assert {key: known.get(key) for key in settings} == settings, (name, recipe)


def test_the_figure_is_the_papers():
    for name in [name for name in PAPERS if "figure" in PAPERS[name]]:
        wanted, study = PAPERS[name], build_paper_study(name)
        figure = study.figures[wanted["figure"]]
        assert figure.kind == wanted["kind"]
        where = getattr(figure, "where", {})
        judged = [run for run in study.runs if run.recipe in where.get("recipe", [run.recipe])]
        found = {
            "recipes": {run.recipe for run in judged},
            "datasets": {run.dataset for run in judged} & set(where.get("dataset", [run.dataset for run in judged])),
            "explainers": {name for run in judged for name in run.explainers or ()},
        }
        for part, names in found.items():
            assert set(wanted.get(part, ())) <= names, part


def test_every_table_and_figure_of_a_paper_has_a_study_and_every_study_its_place_in_a_paper():
    assert set(PAPERS) == set(list_studies()) - OURS


def test_every_study_is_valid_and_asks_for_what_it_shows(monkeypatch, tmp_path):
    papers = [build_paper_study(name) for name in list_studies()]
    monkeypatch.setenv("EXPOUND_DATA", str(tmp_path))
    for study in [*papers, *(load_study(name, "small") for name in list_studies())]:
        assert study.runs, study.name
        assert study.title, study.name
        assert study.tables or study.figures, study.name
        judged = {run.dataset for run in study.runs if run.dataset}
        trained = {run.recipe for run in study.runs}
        for part in [*study.tables.values(), *study.figures.values()]:
            assert set(part.where.get("dataset", ())) <= judged | {"SST Dev"}, study.name
            assert set(part.where.get("recipe", ())) <= trained, study.name
            for axis in [*getattr(part, "x", ()), *getattr(part, "y", ())]:
                assert axis.dataset is None or axis.dataset in judged, study.name
