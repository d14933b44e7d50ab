"""`exegete study`: a paper's table from one file."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exegete.cli import options
from exegete.cli.console import console, hush, say
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.studies.runs.grid import Grid
    from exegete.studies.runs.run_cell import Ended
    from exegete.studies.runs.store import Cell, Store
    from exegete.studies.tables.page import PagePart
    from exegete.studies.tables.results import Results
    from exegete.studies.workers.engine import Outcome
    from exegete.studies.workers.engine import Workers as WorkersProtocol

app = typer.Typer(
    help="Run grids of models, seeds, explainers and metrics, and make tables of them.", no_args_is_help=True
)


class Engine(StrEnum):
    """The engine that executes the runs."""

    local = "local"
    ray = "ray"


class Scale(StrEnum):
    """How large the study is."""

    small = "small"
    paper = "paper"
    trial = "trial"


class Format(StrEnum):
    """The file format that a table is written in."""

    md = "md"
    csv = "csv"
    tex = "tex"
    html = "html"


File = Annotated[Path, typer.Argument(help="The study's YAML file.")]
Files = Annotated[list[Path], typer.Argument(help="Study files, one after the other.", metavar="FILES...")]
Runs = Annotated[Path, typer.Option("--output-dir", "-o", help="Where runs are kept; several studies may share it.")]
ScaleOption = Annotated[Scale, typer.Option("--scale", help="The size that the file gives under 'scales'.")]
Only = Annotated[
    str | None,
    typer.Option(
        "--only", help="Only runs with this in their title (see --dry-run), * and ? allowed; and what they need."
    ),
]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Processes of this machine, or a Ray cluster.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Runs at a time. Default: 1, or all of a cluster.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads of each run. Default: a share of the cores.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what there is to do, and how long it may take.")]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Keep what an interrupted study has; else refuse to.")
]
Minutes = Annotated[
    float | None, typer.Option("--minutes", min=0, help="Begin no run after so long. Default: all are begun.")
]
Address = Annotated[str | None, typer.Option("--address", help="Of the Ray cluster. Default: the one running here.")]
STORE = Path("runs")


@app.callback()
def _group() -> None:
    """Run studies, report on them, and compare explanations."""


@app.command()
def run(
    files: Files,
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
    """Do studies' runs and make their tables. Stopped or killed, the same command goes on where it was.

    A run that is finished is never done again, by any study that shares the output folder; a changed one is a new one.

    Examples: exegete study run studies/er-table-2.yaml --dry-run

    exegete study run studies/er-table-2.yaml --workers 2 --output-dir runs

    exegete study run studies/er-table-2.yaml --scale paper --engine ray --address auto
    """
    opened = [(_opened if dry_run else _built)(file, scale, output_dir, only) for file in files]
    store = opened[0][1]
    if not dry_run:
        from exegete.studies.runs.timed_steps import measured

        hush()
        _require_startable([grid for grid, _ in opened], store, resume)
        options.writable(output_dir)
        measured(store)
    for grid, _ in opened:
        _show_status(grid, store)
        if dry_run:
            _show_runs(grid, store, quiet)
    if len(opened) > 1:
        cells = {cell.key: cell for grid, _ in opened for cell in grid.cells}
        _show_left(cells.values(), store, f"all {len(opened)}: {len(cells)} runs, shared ones once; ")
    if dry_run:
        return
    from exegete.studies.workers.engine import drive

    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    failed = False
    for grid, _ in opened:
        hands = _workers(engine, output_dir, workers, threads, address)
        outcome = drive(grid.cells, output_dir, hands, _Talk(grid, quiet), minutes=(end - time.monotonic()) / 60)
        _write(grid, store)
        failed |= _show_end(grid, outcome, output_dir)
    if failed:
        raise typer.Exit(1)


@app.command()
def status(file: File, output_dir: Runs = STORE, scale: ScaleOption = Scale.small, only: Only = None) -> None:
    """Say how far a study is, what failed, and how long the rest may take.

    Example: exegete study status studies/er-table-2.yaml --output-dir runs
    """
    grid, store = _opened(file, scale, output_dir, only)
    for name, reason in _show_status(grid, store).items():
        console().print(f"failed: {name}: {reason}", markup=False)


@app.command()
def table(
    file: File,
    output_dir: Runs = STORE,
    scale: ScaleOption = Scale.small,
    name: Annotated[str | None, typer.Option("--table", help="One of the file's tables. Default: all.")] = None,
    form: Annotated[Format, typer.Option("--format", help="Markdown, CSV, LaTeX or HTML.")] = Format.md,
) -> None:
    """Print a study's tables, with what is finished so far.

    Example: exegete study table studies/er-table-2.yaml --format tex
    """
    from exegete.studies.tables.report import FORMATS
    from exegete.studies.tables.tables import study_table

    results = _results(file, scale, output_dir)
    for each in [name] if name else list(results.grid.study.file.tables):
        typer.echo(FORMATS[form.value](study_table(results, each)))


@app.command()
def report(file: File, output_dir: Runs = STORE, scale: ScaleOption = Scale.small) -> None:
    """Write a study's tables, figures and page, with what is finished so far.

    Example: exegete study report studies/er-table-2.yaml
    """
    results = _results(file, scale, output_dir)
    _write(results.grid, results.store)


@app.command()
def page(
    files: Annotated[list[Path], typer.Argument(help="Hand-written parts of pages (.md), or study files.")],
    output_dir: Runs = STORE,
    output: Annotated[
        Path | None, typer.Option("--output", help="The page, or a folder for several. Default: print it.")
    ] = None,
) -> None:
    """Write pages of results: hand-written text with its tables and figures filled in from finished runs.

    The same runs give the same bytes. What is not run says so; a figure that contradicts what is written is an error.

    Examples: exegete study page studies/pages/er.md --output docs/results

    exegete study page studies/er-table-2.yaml
    """
    from exegete.data.provenance import whole_file
    from exegete.studies.tables.page import page as made

    for part, results in _parts(files, output_dir):
        text = made(part, results)
        if output is None:
            typer.echo(text, nl=False)
            continue
        with whole_file(output / f"{part.path.stem}.md" if output.suffix != ".md" else output) as fresh:
            fresh.write_text(text, encoding="utf-8")


@app.command("export")
def export_(
    files: Annotated[list[Path], typer.Argument(help="Parts of pages (.md), or study files.")],
    output_dir: Runs = STORE,
) -> None:
    """Write the figures of a page's finished runs, without any weights, into one Parquet file beside its part.

    Example: exegete study export studies/pages/er.md
    """
    from exegete.studies.runs.figures_file import export_figures
    from exegete.studies.runs.store import Store

    for part, results in _parts(files, output_dir):
        path = part.path.with_suffix(".parquet")
        count = export_figures((each.grid for each in results.values()), Store(output_dir), path)
        say(f"{path}: figures of {count} runs, {path.stat().st_size / 1e6:.2f} MB")


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="What `export` wrote, or folders of runs of other machines.")],
    output_dir: Runs = STORE,
) -> None:
    """Take figures, or whole runs, into a folder of runs: pages are made of them, and only missing runs are done.

    Example: exegete study import studies/pages/er.parquet --output-dir runs
    """
    from exegete.studies.runs.figures_file import import_figures, merge
    from exegete.studies.runs.store import Store

    options.writable(output_dir)
    for path in files:
        count = merge(Store(path), Store(output_dir)) if path.is_dir() else import_figures(path, Store(output_dir))
        say(f"{path}: {count} runs added")


@app.command()
def leaderboard(
    output_dir: Runs = STORE,
    form: Annotated[str, typer.Option("--format", help="text, csv or tex.")] = "text",
) -> None:
    """Compare all explanations that were judged in a folder of runs, of whatever studies.

    Example: exegete study leaderboard --output-dir runs
    """
    from exegete.errors import unknown
    from exegete.reports.tables.csv_table import csv_table
    from exegete.reports.tables.latex import latex
    from exegete.reports.terminal import table as drawn
    from exegete.studies.runs.store import Store
    from exegete.studies.tables.leaderboards import leaderboards

    if form not in ("text", "csv", "tex"):
        raise unknown("format", form, ("text", "csv", "tex"))
    found = leaderboards(Store(output_dir))
    if not found:
        raise ExegeteError(f"{output_dir} holds no judged explanations")
    for dataset, board in found.items():
        typer.echo(dataset)
        if form == "text":
            console().print(drawn(board))
        else:
            typer.echo(csv_table(board) if form == "csv" else latex(board, dataset))


class _Talk:
    """Says on standard error what happens."""

    def __init__(self, grid: Grid, quiet: bool) -> None:
        self.count, self.left, self.quiet = len(grid.cells), len(grid.cells), quiet

    def __call__(self, cell: Cell, ended: Ended) -> None:
        if ended.status in ("done", "failed"):
            self.left -= 1
        if ended.status == "busy" or (self.quiet and ended.status == "done"):
            return
        what = {"done": f"done in {ended.seconds:.0f} s", "failed": "FAILED", "killed": "killed, trying again"}
        message = f": {ended.message}" if ended.message else ""
        say(f"{cell.title}: {what.get(ended.status, ended.status)}{message}")


def _opened(file: Path, scale: Scale, output_dir: Path, only: str | None) -> tuple[Grid, Store]:
    """The grid and the store, for looking at: by outlines, which import no torch, wherever these will do."""
    from exegete.data.outline import outlined

    with suppress(LookupError, TypeError, NameError, AttributeError, AssertionError), outlined():
        return _built(file, scale, output_dir, only)
    return _built(file, scale, output_dir, only)


def _built(file: Path, scale: Scale, output_dir: Path, only: str | None) -> tuple[Grid, Store]:
    from exegete.studies.runs.grid import grid
    from exegete.studies.runs.store import Store
    from exegete.studies.spec.study_file import load_study

    study, store = load_study(file, scale.value), Store(output_dir)
    found = grid(study, store.recorded(study.name)).only(only)
    if not found.runs:
        raise ExegeteError(f"no run of {file} has {only!r} in its title")
    return found, store


def _results(file: Path, scale: Scale, output_dir: Path) -> Results:
    from exegete.studies.tables.results import collect

    return collect(*_opened(file, scale, output_dir, None))


def _parts(files: Sequence[Path], output_dir: Path) -> Iterator[tuple[PagePart, dict[str, Results]]]:
    from exegete.studies.tables.page import read_part

    for file in files:
        part = read_part(file)
        yield part, {name: _results(path, Scale(part.scale), output_dir) for name, path in part.studies.items()}


def _require_startable(grids: Sequence[Grid], store: Store, resume: bool) -> None:
    for grid in grids:
        if grid.missing:
            raise ExegeteError(grid.missing[0])
        if not resume and any(store.done(cell.key) for cell in grid.cells):
            raise ExegeteError(
                f"{store.root} holds finished runs of this study: choose another folder, or drop --no-resume"
            )
    options.writable(store.root)


def _show_status(grid: Grid, store: Store) -> dict[str, str]:
    from exegete.studies.runs.estimate import in_words
    from exegete.studies.tables.status import status

    now = status(grid, store)
    words = {"train": "training runs", "judge": "judgements"}
    counts = [f"{now.total[kind]} {word} ({now.done[kind]} done)" for kind, word in words.items() if now.total[kind]]
    console().print(f"{grid.study.name}: {now.total.total()} runs: {', '.join(counts)}", markup=False)
    if now.spent.seconds:
        took, estimated = in_words(now.spent.seconds), in_words(now.spent.estimated)
        console().print(f"done: took {took} of one core, estimated {estimated}", markup=False)
    _show_left(grid.cells, store)
    return now.failed


def _show_left(cells: Iterable[Cell], store: Store, before: str = "") -> None:
    from exegete.studies.runs import estimate

    left = estimate.left(cells, store)
    if left.seconds:
        speed = "timed steps of this machine" if left.speed else "the speed of a usual core"
        basis = f"{speed}, measured on {left.measured} runs" if left.measured else speed
        console().print(f"{before}left: about {estimate.in_words(left.seconds)} of one core ({basis})", markup=False)


def _show_runs(grid: Grid, store: Store, quiet: bool) -> None:
    for line in grid.missing:
        say(f"not on this machine: {line}")
    for each in () if quiet else grid.runs:
        console().print(f"{'done' if store.done(each.cell.key) else '    '}  {each.title}", markup=False)


def _workers(
    engine: Engine, root: Path, count: int | None, threads: int | None, address: str | None
) -> WorkersProtocol:
    if engine is Engine.ray:
        from exegete.studies.workers.on_ray import RayWorkers

        return RayWorkers(root, count, threads or 1, address)
    from exegete.studies.workers.local import LocalWorkers

    return LocalWorkers(root, count or 1, threads)


def _write(grid: Grid, store: Store) -> None:
    from exegete.studies.runs.run_cell import no_space
    from exegete.studies.tables.report import write_report
    from exegete.studies.tables.results import collect

    try:
        page = write_report(collect(grid, store), store.root / "studies" / grid.study.name)
    except OSError as error:
        if not no_space(error):
            raise
        say(f"the report could not be written: {error.strerror}")
        return
    say(f"report: {page}")


def _show_end(grid: Grid, outcome: Outcome, root: Path) -> bool:
    """Says what failed or is left; whether anything failed."""
    titles = {cell.key: cell.title for cell in grid.cells}
    for key, reason in outcome.failed.items():
        say(f"failed: {titles[key]}: {reason} (see {root / 'failed' / key}.txt)")
    if outcome.full:
        say(f"the disk of {root} is full: make room and run the same command; {len(outcome.done)} runs are kept")
    elif outcome.waiting:
        say(f"the time is up: {outcome.waiting} runs are left; the same command goes on")
    return bool(outcome.failed)
