"""`expound study`: reproduce a table of a paper from one file."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expound.cli.shared import options
from expound.cli.shared.console import console, say, silence_libraries
from expound.cli.shared.help import GroupedCommand
from expound.cli.shared.stopping import set_stop_message
from expound.errors import ExpoundError, check_choice
from expound_papers.cli.opening import Scale, load_page_parts, load_results, open_store, open_study
from expound_papers.cli.output import ProgressReporter, show_end, show_left, show_runs, show_status, write_study_report

if TYPE_CHECKING:
    from expound.evaluation.workers.scheduler import Workers as WorkersProtocol
    from expound_papers.runs.store import Store
    from expound_papers.study.study import Study

app = typer.Typer(
    help="Run grids of models, seeds, explainers and metrics, and make tables from them.", no_args_is_help=True
)


class Engine(StrEnum):
    """The engine that executes runs."""

    local = "local"
    ray = "ray"


class Format(StrEnum):
    """The file format that a table is written in."""

    md = "md"
    csv = "csv"
    tex = "tex"
    html = "html"


Name = Annotated[str, typer.Argument(help="A study's name, or a Python file with studies: FILE.py or FILE.py:NAME.")]
Names = Annotated[list[str], typer.Argument(help="Studies, run one after the other.", metavar="NAMES...")]
Pages = Annotated[list[str], typer.Argument(help="Page texts (.md), or studies.", metavar="PAGES...")]
Runs = Annotated[
    Path, typer.Option("--output-dir", "-o", help="Folder of finished runs; several studies can share it.")
]
Figures = Annotated[
    Path, typer.Option("--output-dir", "-o", help="Folder of finished runs, or a file written by `export`.")
]
ScaleOption = Annotated[Scale, typer.Option(help="The scale of the study.")]
Only = Annotated[
    str | None,
    typer.Option(
        help="Only runs whose title contains this (see --dry-run; * and ? are wildcards), and their dependencies."
    ),
]
EngineOption = Annotated[Engine, typer.Option(help="local: processes on this machine; ray: a Ray cluster.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of parallel runs. Default: 1; on a cluster, all workers.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads per run. Default: an equal share of the cores.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the runs and the estimated time, without running them.")]
Resume = Annotated[bool, typer.Option("--resume/--no-resume", help="Resume an interrupted study, or refuse to.")]
Minutes = Annotated[float | None, typer.Option(min=0, help="Start no new run after N minutes.", metavar="N")]
Address = Annotated[str | None, typer.Option(help="Address of the Ray cluster. Default: the local one.")]
STORE = Path("runs")


@app.callback()
def _group() -> None:
    """Run studies, report on them, and compare explanations."""


@app.command(cls=GroupedCommand)
def run(
    names: Names,
    output_dir: Runs = STORE,
    scale: ScaleOption = Scale.small,
    engine: EngineOption = Engine.local,
    workers: Workers = None,
    threads: Threads = None,
    only: Only = None,
    dry_run: DryRun = False,
    minutes: Minutes = None,
    resume: Resume = True,
    address: Address = None,
    quiet: options.Quiet = False,
) -> None:
    """Run studies and make their tables. Run the same command again to resume after an interruption.

    Studies that share an output folder share finished runs. A run with a changed configuration is a new run.

    Examples: expound study run er-table-2 --dry-run

    expound study run er-table-2 --workers 2 --output-dir runs

    expound study run er-table-2 --scale paper --engine ray --address auto
    """
    # All studies are recorded first, so that a mistake in the last one does not appear after hours.
    from expound_papers.runs.store import Store

    store = Store(output_dir)
    studies = [open_study(name, scale, store, only) for name in names]
    if not dry_run:
        silence_libraries()
        _require_startable(studies, store, resume)
        options.require_writable(output_dir)
    for study in studies:
        show_status(study, store)
        if dry_run:
            show_runs(study, store, quiet)
    if len(studies) > 1:
        keys = set[str]()
        for study in studies:
            keys |= {cell.key for cell in study.cells}
        show_left(studies, store, f"all {len(studies)}: {len(keys)} runs, shared ones once; ")
    if dry_run:
        return
    from expound_papers.runs.run_cell import run_all

    set_stop_message(f"finished runs and checkpoints are saved in {output_dir}: resume with the same command")
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    failed = False
    for study in studies:
        hands = _workers(engine, output_dir, workers, threads, address)
        outcome = run_all(
            study.cells, output_dir, hands, ProgressReporter(study, quiet), minutes=(end - time.monotonic()) / 60
        )
        failed |= not write_study_report(study, store)
        failed |= show_end(study, outcome, output_dir)
    if failed:
        raise typer.Exit(1)


@app.command(cls=GroupedCommand)
def status(name: Name, output_dir: Runs = STORE, scale: ScaleOption = Scale.small, only: Only = None) -> None:
    """Print the progress of a study, its failures, and the estimated time left.

    Example: expound study status er-table-2 --output-dir runs
    """
    from expound_papers.runs.store import Store

    store = Store(output_dir)
    study = open_study(name, scale, store, only)
    for title, reason in show_status(study, store).items():
        console().print(f"failed: {title}: {reason}", markup=False)


@app.command(cls=GroupedCommand)
def table(
    name: Name,
    output_dir: Figures = STORE,
    scale: ScaleOption = Scale.small,
    only: Annotated[str | None, typer.Option("--table", help="One table of the study. Default: all.")] = None,
    form: Annotated[Format, typer.Option("--format", help="Markdown, CSV, LaTeX or HTML.")] = Format.md,
) -> None:
    """Print the tables of a study from its finished runs.

    Example: expound study table er-table-2 --format tex
    """
    from expound_papers.tables.report import FORMATS
    from expound_papers.tables.tables import make_study_table

    results = load_results(name, scale, open_store(output_dir))
    for table_name in [only] if only else list(results.study.tables):
        typer.echo(FORMATS[form.value](make_study_table(results, table_name)))


@app.command(cls=GroupedCommand)
def report(name: Name, output_dir: Runs = STORE, scale: ScaleOption = Scale.small) -> None:
    """Write the tables, figures and page of a study from its finished runs.

    Example: expound study report er-table-2
    """
    from expound_papers.runs.store import Store

    results = load_results(name, scale, Store(output_dir))
    if not write_study_report(results.study, results.store):
        raise typer.Exit(1)


@app.command(cls=GroupedCommand)
def page(
    pages: Pages,
    output_dir: Figures = STORE,
    output: Annotated[
        Path | None, typer.Option(help="The output file, or a folder for several pages. Default: print.")
    ] = None,
) -> None:
    """Write pages of results: hand-written texts with tables and figures filled in from finished runs.

    Equal runs give equal bytes. Missing runs are marked as not run. A figure that contradicts the text is an error.

    Examples: expound study page pages/er.md --output results

    expound study page er-table-2
    """
    from expound.data.atomic_files import atomic_file
    from expound_papers.tables.page import fill_page

    for part, results in load_page_parts(pages, open_store(output_dir)):
        text = fill_page(part, results)
        if output is None:
            typer.echo(text, nl=False)
            continue
        target = output if output.suffix == ".md" else output / f"{part.path.stem}.md"
        with atomic_file(target) as fresh:
            fresh.write_text(text, encoding="utf-8")


@app.command("export", cls=GroupedCommand)
def export_(pages: Pages, output_dir: Runs = STORE) -> None:
    """Write the figures of a page's finished runs, without weights, into one Parquet file beside its text.

    Example: expound study export pages/er.md
    """
    from expound_papers.runs.store import Store
    from expound_papers.tables.figures_file import export_figures

    store = Store(output_dir)
    for part, results in load_page_parts(pages, store):
        path = part.path.with_suffix(".parquet")
        count = export_figures([each.study for each in results.values()], store, path)
        say(f"{path}: figures of {count} runs, {path.stat().st_size / 1e6:.2f} MB")


@app.command("import", cls=GroupedCommand)
def import_(
    files: Annotated[
        list[Path], typer.Argument(help="Files written by `export`, or folders of runs from other machines.")
    ],
    output_dir: Runs = STORE,
) -> None:
    """Import figures or whole runs into a folder of runs. Pages use them, and only missing runs are executed.

    Example: expound study import pages/er.parquet --output-dir runs
    """
    from expound_papers.runs.store import Store
    from expound_papers.tables.figures_file import import_figures, merge_stores

    options.require_writable(output_dir)
    for path in files:
        if path.is_dir():
            count = merge_stores(Store(path), Store(output_dir))
        else:
            count = import_figures(path, Store(output_dir))
        say(f"{path}: {count} runs added")


@app.command(cls=GroupedCommand)
def leaderboard(
    output_dir: Runs = STORE, form: Annotated[str, typer.Option("--format", help="text, csv or tex.")] = "text"
) -> None:
    """Compare all explanations judged in a folder of runs, across studies.

    Example: expound study leaderboard --output-dir runs
    """
    from expound.reports.tables.board_table import make_board_table, render_board_csv, render_board_latex
    from expound_papers.runs.store import Store
    from expound_papers.tables.leaderboards import make_leaderboards

    check_choice("format", form, ("text", "csv", "tex"))
    boards = make_leaderboards(Store(output_dir))
    if not boards:
        raise ExpoundError(f"{output_dir} contains no judged explanations")
    for dataset, board in boards.items():
        typer.echo(dataset)
        if form == "text":
            console().print(make_board_table(board))
        elif form == "csv":
            typer.echo(render_board_csv(board))
        else:
            typer.echo(render_board_latex(board, dataset))


def _workers(
    engine: Engine, root: Path, count: int | None, threads: int | None, address: str | None
) -> WorkersProtocol:
    if engine is Engine.ray:
        from expound.evaluation.workers.on_ray import RayWorkers

        return RayWorkers(root, count, threads or 1, address)
    from expound.evaluation.workers.local import LocalWorkers

    return LocalWorkers(count or 1, threads)


def _require_startable(studies: Sequence[Study], store: Store, resume: bool) -> None:
    for study in studies:
        if study.missing:
            raise ExpoundError(study.missing[0])
        if not resume and any(store.is_done(cell.key) for cell in study.cells):
            raise ExpoundError(
                f"{store.root} contains finished runs of this study: choose another folder, or omit --no-resume"
            )
    options.require_writable(store.root)
