"""Explanations of a corpus on disk: Parquet files of equal numbers of rows, and a dataset card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from expound.data.atomic_files import atomic_file
from expound.data.provenance import FINISHED, RUNNING, RunFolder, add_to_record, read_record
from expound.errors import ExpoundError
from expound.reports.explanations import Explanation
from expound.reports.storage import COLUMNS, FORMAT_VERSION, SPANS, to_arrow_table

HEAD, CARD, PART = "corpus.json", "README.md", re.compile(r"part-(\d{6})\.parquet")
ROWS = b"expound_rows"
EXAMPLE_COLUMNS: Mapping[str, tuple[pa.DataType, str]] = {
    "id": (
        pa.string(),
        "the corpus's own id, if it has a column `id`; `metadata` has it and the columns that are kept",
    ),
    "label": (pa.string(), "the corpus's own label, by its name (of a regression: the number), if it has any"),
    "rationale": (SPANS, "what people marked: text (0 or 1), start and end in characters; null without annotation"),
}
"""The columns of a corpus beside those of a stored explanation."""
ALL_COLUMNS = {**COLUMNS, **EXAMPLE_COLUMNS}
CORPUS_SCHEMA = pa.schema({name: kind for name, (kind, _) in ALL_COLUMNS.items()})


class CorpusParts:
    """The parts of a corpus in a folder, which belongs to one configuration.

    Args:
        folder: where the parts are, or will be written.
        config: everything that the explanations depend on; None: read an existing corpus.

    Raises:
        ExpoundError: a folder with another configuration, or without a corpus if no configuration is given.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        if config is not None:
            run = RunFolder(
                folder,
                config,
                "a corpus explained otherwise (see {names} in corpus.json)",
                "choose another folder, or the same model, data, method and options",
                record_name=HEAD,
            )
            if run.read() is None:
                with atomic_file(folder / CARD) as fresh:
                    fresh.write_text(_format_card(config), encoding="utf-8")
                run.write(RUNNING, format_version=FORMAT_VERSION, rows=None)
        try:
            self.head = read_record(folder / HEAD)
            self.config: dict[str, Any] = self.head["config"]
        except (OSError, ValueError, KeyError) as error:
            raise ExpoundError(f"{folder} holds no corpus of `expound explain --data`: {HEAD}: {error}") from error
        if self.head.get("format_version") != FORMAT_VERSION:
            raise ExpoundError(
                f"{folder} has version {self.head.get('format_version')}, expected {FORMAT_VERSION}: explain the "
                "corpus again, into another folder"
            )

    def path(self, number: int) -> Path:
        """Return the path of a part."""
        return self.folder / f"part-{number:06d}.parquet"

    def has(self, number: int, rows: list[dict[str, Any]]) -> bool:
        """Return whether the part of these rows exists. Raises ExpoundError if the part explains other rows."""
        path = self.path(number)
        if not path.exists():
            return False
        if (_open_parquet(path).schema_arrow.metadata or {}).get(ROWS) != digest_rows(rows):
            raise ExpoundError(f"{path} explains other rows: the data changed since; choose another folder")
        return True

    def write(self, number: int, rows: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
        """Write the explanations of a part, with a digest of the rows that they explain."""
        with atomic_file(self.path(number)) as fresh:
            content = to_arrow_table(found, CORPUS_SCHEMA).replace_schema_metadata({ROWS: digest_rows(rows)})
            pq.write_table(content, fresh, compression="zstd")

    def finish(self) -> int:
        """Record that all parts exist, and return the number of explanations."""
        rows = 0
        for path in self.paths():
            rows += _open_parquet(path).metadata.num_rows
        add_to_record(self.folder, {"status": FINISHED, "rows": rows}, HEAD)
        return rows

    def paths(self) -> list[Path]:
        """Return the paths of the existing parts, in order."""
        return sorted(path for path in self.folder.glob("part-*") if PART.fullmatch(path.name))

    def rows(self, columns: list[str]) -> Iterator[dict[str, Any]]:
        """Yield all rows with these columns, in order; memory holds one batch.

        Raises:
            ExpoundError: a corpus that is not explained completely, or a part that cannot be read.
        """
        if self.head["rows"] is None:
            raise ExpoundError(f"{self.folder} is not explained completely: run `expound explain` again")
        for path in self.paths():
            for batch in _open_parquet(path).iter_batches(columns=columns):
                yield from batch.to_pylist()


def make_explained_row(item: Explanation, row: Mapping[str, Any], label: str | None) -> dict[str, Any]:
    """Return an explanation with the id, label and rationale of its example, by column."""
    marked: list[list[int]] | None = None
    for side, name in enumerate(("rationale", "rationale_pair")):
        if row.get(name) is not None:
            marked = marked or []
            marked += [[side, *span] for span in row[name]]
    own_id = item.metadata.get("id")
    return item.to_row() | {"id": None if own_id is None else str(own_id), "label": label, "rationale": marked}


def split_rows(rows: Iterable[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in lists of `size`; the last one may be shorter."""
    iterator = iter(rows)
    while part := list(islice(iterator, size)):
        yield part


def digest_rows(rows: list[dict[str, Any]]) -> bytes:
    """Return a digest of rows as they were read."""
    return blake2b(repr(rows).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest().encode()


def _open_parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise ExpoundError(f"{path} cannot be read as Parquet ({error}): remove it, and explain again") from error


def _format_card(config: Mapping[str, Any]) -> str:
    """Return a card that `datasets` reads: which files hold rows, and what their columns are."""
    lines = [f"| `{name}` | {kind} | {what} |" for name, (kind, what) in ALL_COLUMNS.items()]
    files = "---\nconfigs:\n- config_name: default\n  data_files: part-*.parquet\n---\n"
    made = f"{config['data']} ({config['split']}), explained by {config['method']['method']} for {config['model']}"
    table_head = "| column | type | what it is |\n| --- | --- | --- |"
    return "\n".join([files, f"# {made}\n\nOne row per example, in the corpus's order.\n\n{table_head}", *lines, ""])
