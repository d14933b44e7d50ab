"""`exegete study`: a paper's table from one file."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exegete.cli.shared import options
from exegete.cli.shared.console import console, hush, say
from exegete.cli.shared.stopping import keeping
from exegete.cli.study.opening import Scale, opened, page_parts, results_of
from exegete.cli.study.output import Progress, show_end, show_left, show_runs, show_status, write
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.studies.runs.grid import RunGrid
    from exegete.studies.runs.store import Store
    from exegete.studies.workers.scheduler import Workers as WorkersProtocol

app = typer.Typer(
    help="Run grids of models, seeds, explainers and metrics, and make tables of them.", no_args_is_help=True
)


class Engine(StrEnum):
    """The engine that executes the runs."""

    local = "local"
    ray = "ray"


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
def schema(
    protocol: Annotated[bool, typer.Option("--protocol", help="Of protocols of human studies instead.")] = False,
) -> None:
    """Print the JSON Schema of study files, for editors.

    A first line `# yaml-language-server: $schema=FILE` in a study file names it. Example: exegete study schema
    """
    import json

    from exegete.studies.spec.schema import make_json_schema

    if protocol:
        from exegete.web.human_study.protocol.file import Protocol

        typer.echo(json.dumps(Protocol.model_json_schema(), indent=2, ensure_ascii=False))
        return
    typer.echo(json.dumps(make_json_schema(), indent=2, ensure_ascii=False))


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
    grids = [opened(file, scale, output_dir, only) for file in files]  # what is wrong is refused at once
    store = grids[0][1]
    if not dry_run:
        hush()
        _require_startable([grid for grid, _ in grids], store, resume)
        options.writable(output_dir)
    for grid, _ in grids:
        show_status(grid, store)
        if dry_run:
            show_runs(grid, store, quiet)
    if len(grids) > 1:
        cells = {cell.key for grid, _ in grids for cell in grid.cells}
        show_left([grid for grid, _ in grids], store, f"all {len(grids)}: {len(cells)} runs, shared ones once; ")
    if dry_run:
        return
    from exegete.studies.workers.scheduler import run_all

    keeping(f"finished runs and checkpoints are kept in {output_dir}, and the same command goes on")
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    failed = False
    for grid, _ in grids:
        hands = _workers(engine, output_dir, workers, threads, address)
        outcome = run_all(grid.cells, output_dir, hands, Progress(grid, quiet), minutes=(end - time.monotonic()) / 60)
        failed |= not write(grid, store)
        failed |= show_end(grid, outcome, output_dir)
    if failed:
        raise typer.Exit(1)


@app.command()
def status(file: File, output_dir: Runs = STORE, scale: ScaleOption = Scale.small, only: Only = None) -> None:
    """Say how far a study is, what failed, and how long the rest may take.

    Example: exegete study status studies/er-table-2.yaml --output-dir runs
    """
    grid, store = opened(file, scale, output_dir, only)
    for name, reason in show_status(grid, store).items():
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
    from exegete.studies.tables.tables import make_study_table

    results = results_of(file, scale, output_dir)
    for each in [name] if name else list(results.grid.study.file.tables):
        typer.echo(FORMATS[form.value](make_study_table(results, each)))


@app.command()
def report(file: File, output_dir: Runs = STORE, scale: ScaleOption = Scale.small) -> None:
    """Write a study's tables, figures and page, with what is finished so far.

    Example: exegete study report studies/er-table-2.yaml
    """
    results = results_of(file, scale, output_dir)
    if not write(results.grid, results.store):
        raise typer.Exit(1)


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
    from exegete.data.atomic_files import atomic_file
    from exegete.studies.tables.page import fill_page as made

    for part, results in page_parts(files, output_dir):
        text = made(part, results)
        if output is None:
            typer.echo(text, nl=False)
            continue
        with atomic_file(output / f"{part.path.stem}.md" if output.suffix != ".md" else output) as fresh:
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

    for part, results in page_parts(files, output_dir):
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
    from exegete.studies.runs.figures_file import import_figures, merge_stores
    from exegete.studies.runs.store import Store

    options.writable(output_dir)
    for path in files:
        count = (
            merge_stores(Store(path), Store(output_dir)) if path.is_dir() else import_figures(path, Store(output_dir))
        )
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
    from exegete.reports.tables.csv_table import render_board_csv
    from exegete.reports.tables.latex import render_board_latex
    from exegete.reports.tables.terminal_table import fit_table as drawn
    from exegete.studies.runs.store import Store
    from exegete.studies.tables.leaderboards import make_leaderboards

    if form not in ("text", "csv", "tex"):
        raise unknown("format", form, ("text", "csv", "tex"))
    found = make_leaderboards(Store(output_dir))
    if not found:
        raise ExegeteError(f"{output_dir} holds no judged explanations")
    for dataset, board in found.items():
        typer.echo(dataset)
        if form == "text":
            console().print(drawn(board))
        else:
            typer.echo(render_board_csv(board) if form == "csv" else render_board_latex(board, dataset))


def _workers(
    engine: Engine, root: Path, count: int | None, threads: int | None, address: str | None
) -> WorkersProtocol:
    if engine is Engine.ray:
        from exegete.studies.workers.on_ray import RayWorkers

        return RayWorkers(root, count, threads or 1, address)
    from exegete.studies.workers.local import LocalWorkers

    return LocalWorkers(root, count or 1, threads)


def _require_startable(grids: Sequence[RunGrid], store: Store, resume: bool) -> None:
    for grid in grids:
        if grid.missing:
            raise ExegeteError(grid.missing[0])
        if not resume and any(store.is_done(cell.key) for cell in grid.cells):
            raise ExegeteError(
                f"{store.root} holds finished runs of this study: choose another folder, or drop --no-resume"
            )
    options.writable(store.root)
