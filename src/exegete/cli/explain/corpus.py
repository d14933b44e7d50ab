"""`exegete explain --data`: a corpus of any size, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exegete.cli.shared.console import say
from exegete.cli.shared.reading import say_columns
from exegete.cli.shared.stopping import keeping
from exegete.errors import ExegeteError


def refuse(other: object, folder: Path | None, methods: str | None) -> None:
    """Raises ExegeteError for what does not go with a corpus."""
    from exegete.cli.shared.options import split_ids

    if folder is None:
        raise ExegeteError("--data needs --output-dir, where the explanations go")
    if other:
        raise ExegeteError("--data does not go with a text, --pair, --html, --json or --task generation")
    if len(split_ids(methods) or [""]) > 1:
        raise ExegeteError("a corpus is explained by one method: run once for each, each with its own --output-dir")


def run(given: dict[str, Any], workers: int, threads: int | None, ray: str | None) -> None:
    """Explains what is not yet explained; says how many rows there are and how to go on."""
    from exegete.cli.shared.options import target_of
    from exegete.studies.corpus.engines import explain_corpus
    from exegete.studies.corpus.job import CorpusJob

    folder = given["folder"]
    keeping(f"finished parts are kept in {folder}: the same command goes on")
    say_columns(given["data"], given["columns"])
    job = CorpusJob(**given | {"target": target_of(given["target"], ())})
    rows = explain_corpus(job, workers, threads=threads, ray=ray)
    if rows:
        say(f"{rows} rows are explained in {folder}; sum them up: exegete summary {folder}")
