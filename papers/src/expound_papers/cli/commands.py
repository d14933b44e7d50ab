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
from expound_papers.cli.opening import Scale, load_page_parts, load_results, open_study
from expound_papers.cli.output import ProgressReporter, show_end, show_left, show_runs, show_status, write_study_report

if TYPE_CHECKING:
    from expound.evaluation.workers.scheduler import Workers as WorkersProtocol
    from expound_papers.runs.grid import RunGrid
    from expound_papers.runs.store import Store

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


File = Annotated[Path, typer.Argument(help="The study's YAML file.")]
Files = Annotated[list[Path], typer.Argument(help="Study files, run one after the other.", metavar="FILES...")]
Runs = Annotated[
    Path, typer.Option("--output-dir", "-o", help="Folder of finished runs; several studies can share it.")
]
ScaleOption = Annotated[Scale, typer.Option(help="A scale defined in the file.")]
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
def schema() -> None:
    """Print the JSON Schema of study files, for editors.

    Refer to it in the first line of a study file: `# yaml-language-server: $schema=FILE`. Example: expound study schema
    """
    import json

    from expound_papers.spec.schema import make_json_schema

    typer.echo(json.dumps(make_json_schema(), indent=2, ensure_ascii=False))


@app.command(cls=GroupedCommand)
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
    """Run studies and make their tables. Run the same command again to resume after an interruption.

    Studies that share an output folder share finished runs. A run with a changed configuration is a new run.

    Examples: expound study run studies/er-table-2.yaml --dry-run

    expound study run studies/er-table-2.yaml --workers 2 --output-dir runs

    expound study run studies/er-table-2.yaml --scale paper --engine ray --address auto
    """
    # All files are read first, so that a mistake in the last one does not appear after hours.
    grids = [open_study(file, scale, output_dir, only) for file in files]
    store = grids[0][1]
    if not dry_run:
        silence_libraries()
        _require_startable([grid for grid, _ in grids], store, resume)
        options.require_writable(output_dir)
    for grid, _ in grids:
        show_status(grid, store)
        if dry_run:
            show_runs(grid, store, quiet)
    if len(grids) > 1:
        keys = set[str]()
        for grid, _ in grids:
            keys |= {cell.key for cell in grid.cells}
        show_left([grid for grid, _ in grids], store, f"all {len(grids)}: {len(keys)} runs, shared ones once; ")
    if dry_run:
        return
    from expound_papers.runs.run_cell import run_all

    set_stop_message(f"finished runs and checkpoints are saved in {output_dir}: resume with the same command")
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    failed = False
    for grid, _ in grids:
        hands = _workers(engine, output_dir, workers, threads, address)
        outcome = run_all(
            grid.cells, output_dir, hands, ProgressReporter(grid, quiet), minutes=(end - time.monotonic()) / 60
        )
        failed |= not write_study_report(grid, store)
        failed |= show_end(grid, outcome, output_dir)
    if failed:
        raise typer.Exit(1)


@app.command(cls=GroupedCommand)
def status(file: File, output_dir: Runs = STORE, scale: ScaleOption = Scale.small, only: Only = None) -> None:
    """Print the progress of a study, its failures, and the estimated time left.

    Example: expound study status studies/er-table-2.yaml --output-dir runs
    """
    grid, store = open_study(file, scale, output_dir, only)
    for name, reason in show_status(grid, store).items():
        console().print(f"failed: {name}: {reason}", markup=False)


@app.command(cls=GroupedCommand)
def table(
    file: File,
    output_dir: Runs = STORE,
    scale: ScaleOption = Scale.small,
    name: Annotated[str | None, typer.Option("--table", help="One table of the file. Default: all.")] = None,
    form: Annotated[Format, typer.Option("--format", help="Markdown, CSV, LaTeX or HTML.")] = Format.md,
) -> None:
    """Print the tables of a study from its finished runs.

    Example: expound study table studies/er-table-2.yaml --format tex
    """
    from expound_papers.tables.report import FORMATS
    from expound_papers.tables.tables import make_study_table

    results = load_results(file, scale, output_dir)
    for table_name in [name] if name else list(results.grid.study.file.tables):
        typer.echo(FORMATS[form.value](make_study_table(results, table_name)))


@app.command(cls=GroupedCommand)
def report(file: File, output_dir: Runs = STORE, scale: ScaleOption = Scale.small) -> None:
    """Write the tables, figures and page of a study from its finished runs.

    Example: expound study report studies/er-table-2.yaml
    """
    results = load_results(file, scale, output_dir)
    if not write_study_report(results.grid, results.store):
        raise typer.Exit(1)


@app.command(cls=GroupedCommand)
def page(
    files: Annotated[list[Path], typer.Argument(help="Page texts (.md), or study files.")],
    output_dir: Runs = STORE,
    output: Annotated[
        Path | None, typer.Option(help="The output file, or a folder for several pages. Default: print.")
    ] = None,
) -> None:
    """Write pages of results: hand-written texts with tables and figures filled in from finished runs.

    Equal runs give equal bytes. Missing runs are marked as not run. A figure that contradicts the text is an error.

    Examples: expound study page studies/pages/er.md --output docs/results

    expound study page studies/er-table-2.yaml
    """
    from expound.data.atomic_files import atomic_file
    from expound_papers.tables.page import fill_page

    for part, results in load_page_parts(files, output_dir):
        text = fill_page(part, results)
        if output is None:
            typer.echo(text, nl=False)
            continue
        target = output if output.suffix == ".md" else output / f"{part.path.stem}.md"
        with atomic_file(target) as fresh:
            fresh.write_text(text, encoding="utf-8")


@app.command("export", cls=GroupedCommand)
def export_(
    files: Annotated[list[Path], typer.Argument(help="Page texts (.md), or study files.")], output_dir: Runs = STORE
) -> None:
    """Write the figures of a page's finished runs, without weights, into one Parquet file beside its text.

    Example: expound study export studies/pages/er.md
    """
    from expound_papers.runs.figures_file import export_figures
    from expound_papers.runs.store import Store

    for part, results in load_page_parts(files, output_dir):
        path = part.path.with_suffix(".parquet")
        count = export_figures([each.grid for each in results.values()], Store(output_dir), path)
        say(f"{path}: figures of {count} runs, {path.stat().st_size / 1e6:.2f} MB")


@app.command("import", cls=GroupedCommand)
def import_(
    files: Annotated[
        list[Path], typer.Argument(help="Files written by `export`, or folders of runs from other machines.")
    ],
    output_dir: Runs = STORE,
) -> None:
    """Import figures or whole runs into a folder of runs. Pages use them, and only missing runs are executed.

    Example: expound study import studies/pages/er.parquet --output-dir runs
    """
    from expound_papers.runs.figures_file import import_figures, merge_stores
    from expound_papers.runs.store import Store

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


def _require_startable(grids: Sequence[RunGrid], store: Store, resume: bool) -> None:
    for grid in grids:
        if grid.missing:
            raise ExpoundError(grid.missing[0])
        if not resume and any(store.is_done(cell.key) for cell in grid.cells):
            raise ExpoundError(
                f"{store.root} contains finished runs of this study: choose another folder, or omit --no-resume"
            )
    options.require_writable(store.root)
