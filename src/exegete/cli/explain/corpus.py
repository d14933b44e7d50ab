"""`exegete explain --data`: explain a corpus of any size, file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exegete.cli.shared.console import say
from exegete.cli.shared.options import parse_target, split_ids
from exegete.cli.shared.reading import say_columns
from exegete.cli.shared.stopping import set_stop_message
from exegete.errors import ExegeteError


def check_corpus_options(other: object, folder: Path | None, methods: str | None) -> None:
    """Raise ExegeteError for options that cannot be combined with a corpus."""
    if folder is None:
        raise ExegeteError("--data needs --output-dir, the folder for the explanations")
    if other:
        raise ExegeteError("--data cannot be combined with a text, --pair, --html, --json or --task generation")
    if len(split_ids(methods) or [""]) > 1:
        raise ExegeteError(
            "a corpus is explained by one method: run the command for each method, with its own --output-dir"
        )


def run_corpus(job: dict[str, Any], workers: int, threads: int | None, ray: str | None) -> None:
    """Explain the rows that are not explained yet, and print their number and the next command."""
    from exegete.studies.corpus.engines import explain_corpus
    from exegete.studies.corpus.job import CorpusJob

    folder = job["folder"]
    set_stop_message(f"finished files are saved in {folder}: resume with the same command")
    say_columns(job["data"], job["columns"])
    corpus_job = CorpusJob(**job | {"target": parse_target(job["target"], ())})
    rows = explain_corpus(corpus_job, workers, threads=threads, ray=ray)
    if rows:
        say(f"{rows} rows are explained in {folder}; summarise them with: exegete summary {folder}")
