"""Rationales that people marked in a human study, read from the study's database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from expound.data.cards import DataCard
from expound.data.readers.base import Row
from expound.data.readers.layouts import DividedFile
from expound.data.readers.marked import MAJORITY, MarkedExample, make_marked_table
from expound.errors import ExpoundError, unknown

if TYPE_CHECKING:
    from datasets import Features

Ask = Callable[..., Iterable[tuple[Any, ...]]]
"""Executes a query with values for its placeholders `?`, and returns the rows."""
SERVERS = ("postgresql://", "postgres://")
STUDIES = "SELECT name FROM project WHERE kind = 'highlight' ORDER BY id"
MARKS = """
SELECT item.id, CAST(item.content AS TEXT), person.name, CAST(answer.content AS TEXT)
FROM project JOIN item ON item.project_id = project.id
LEFT JOIN answer ON answer.item_id = item.id AND answer.annotator_id IN (
  SELECT id FROM annotator WHERE annotator.slot IS NULL OR annotator.status = 'complete')
LEFT JOIN annotator AS person ON person.id = answer.annotator_id
WHERE project.name = ? AND item.role = '' ORDER BY item.number, person.id
"""


@dataclass(frozen=True, kw_only=True)
class Study(DividedFile):
    """Reads a study of the kind highlight from an SQLite or PostgreSQL database.

    Participants of a protocol count if they completed it. The address of a server must not contain a password, because
    records of runs keep the address; libpq reads PGPASSWORD or ~/.pgpass.

    Args:
        name: the study. Default: the only one of the database.
        share: a character is evidence if at least this share of an example's annotators marked it.
    """

    card: ClassVar[DataCard] = DataCard(
        name="study", what="texts and pairs with the spans that people marked in a study of `expound people`",
        form="study:FILE.db or study:postgresql://USER@HOST/NAME, with ?name=STUDY&share=0.5 of people to agree",
        source="collected by `expound people create NAME --kind highlight`", license="yours",
        example="study:expound-studies.db?name=films",
    )  # fmt: skip
    name: str = ""
    share: float = MAJORITY

    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """Return the marked examples, divided by their first texts."""
        storage = _open_server(self.path) if self.path.startswith(SERVERS) else _open_file(path)
        with storage as ask:
            features, rows = make_marked_table(_read_examples(ask, self.name, self.path), self.share)
        return features, ((row["text"], row) for row in rows)


@contextmanager
def _open_file(path: Path) -> Iterator[Ask]:
    if not path.is_file():
        raise ExpoundError(f"there is no file {path}: expected the storage of a study, as expound-studies.db")
    try:
        # opened read-only, so that reading neither creates nor changes a database
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as storage:
            yield storage.execute
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ExpoundError(f"{path} is no storage of studies: {error}") from error


@contextmanager
def _open_server(address: str) -> Iterator[Ask]:
    if ":" in address.partition("://")[2].rpartition("@")[0]:
        raise ExpoundError("records keep the address of data: leave the password out, and give it as PGPASSWORD")
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise ExpoundError(
            "studies on PostgreSQL need the package psycopg: pip install 'expound-people[postgres]'"
        ) from error
    try:
        with psycopg.connect(address, connect_timeout=10) as storage:
            storage.read_only = True
            yield lambda query, values=(): storage.execute(query.replace("?", "%s"), values)
    except (psycopg.Error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ExpoundError(f"{address} is no storage of studies: {' '.join(str(error).split())}") from error


def _read_examples(ask: Ask, name: str, where: str) -> list[MarkedExample]:
    names = [row[0] for row in ask(STUDIES)]
    if not name and len(names) != 1:
        raise ExpoundError(f"{where}: expected ?name= one of its studies in which words are marked: {', '.join(names)}")
    if name and name not in names:
        raise unknown("study in which words are marked", name, names)
    contents: dict[int, Row] = {}
    marks: dict[int, dict[str, tuple[tuple[int, int, int], ...]]] = {}
    for item, text, person, answer in ask(MARKS, (name or names[0],)):
        contents[item] = json.loads(text)
        if person is not None:
            spans = json.loads(answer)["marks"]
            marks.setdefault(item, {})[person] = tuple((segment, start, end) for segment, start, end in spans)
    examples = []
    for number, (item, content) in enumerate(contents.items(), 1):
        place = f"{where}, example {number}"
        examples.append(MarkedExample(tuple(content["texts"]), content["label"], marks.get(item, {}), where=place))
    return examples
