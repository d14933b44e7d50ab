"""Rationales that people marked in a study of `exegete serve`, read from the study's own storage."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from exegete.data.cards import DataCard
from exegete.data.marked import MAJORITY, MarkedExample, make_marked_table
from exegete.data.readers.base import Row
from exegete.data.readers.layouts import DividedFile
from exegete.errors import ExegeteError, unknown

if TYPE_CHECKING:
    from datasets import Features

Ask = Callable[..., Iterable[tuple[Any, ...]]]
"""Rows of a query, whose places are ?, with values for these."""
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
    """A study of the kind highlight in an SQLite or PostgreSQL storage, by its `name`; default: the only one.

    Of people who take part by a protocol, those count who completed it. `share`: a character is evidence when at least
    this share of an example's people marked it. A server's address has no password, as records of runs keep it: libpq
    reads PGPASSWORD or ~/.pgpass.
    """

    card: ClassVar[DataCard] = DataCard(
        name="study", what="texts and pairs with the spans that people marked in a study of `exegete serve`",
        form="study:FILE.db or study:postgresql://USER@HOST/NAME, with ?name=STUDY&share=0.5 of people to agree",
        source="collected by `exegete serve --study NAME --kind highlight`", licence="yours",
        example="study:exegete-studies.db?name=films",
    )  # fmt: skip
    name: str = ""
    share: float = MAJORITY

    def read_keyed_rows(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """The marked examples, divided by their first texts."""
        storage = _server(self.path) if self.path.startswith(SERVERS) else _file(path)
        with storage as ask:
            features, rows = make_marked_table(_examples(ask, self.name, self.path), self.share)
        return features, ((row["text"], row) for row in rows)


@contextmanager
def _file(path: Path) -> Iterator[Ask]:
    if not path.is_file():
        raise ExegeteError(f"there is no file {path}: expected the storage of a study, as exegete-studies.db")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as storage:
            yield storage.execute
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ExegeteError(f"{path} is no storage of studies: {error}") from error


@contextmanager
def _server(address: str) -> Iterator[Ask]:
    if ":" in address.partition("://")[2].rpartition("@")[0]:
        raise ExegeteError("records keep the address of data: leave the password out, and give it as PGPASSWORD")
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise ExegeteError("studies on PostgreSQL need the package psycopg: pip install 'exegete[postgres]'") from error
    try:
        with psycopg.connect(address, connect_timeout=10) as storage:
            storage.read_only = True
            yield lambda query, values=(): storage.execute(query.replace("?", "%s"), values)
    except (psycopg.Error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ExegeteError(f"{address} is no storage of studies: {' '.join(str(error).split())}") from error


def _examples(ask: Ask, name: str, where: str) -> list[MarkedExample]:
    names = [row[0] for row in ask(STUDIES)]
    if not name and len(names) != 1:
        raise ExegeteError(f"{where}: expected ?name= one of its studies in which words are marked: {', '.join(names)}")
    if name and name not in names:
        raise unknown("study in which words are marked", name, names)
    contents: dict[int, Row] = {}
    marks: dict[int, dict[str, tuple[tuple[int, int, int], ...]]] = {}
    for item, content, person, answer in ask(MARKS, (name or names[0],)):
        contents[item] = json.loads(content)
        if person is not None:
            said = json.loads(answer)["marks"]
            marks.setdefault(item, {})[person] = tuple((side, start, end) for side, start, end in said)
    return [
        MarkedExample(tuple(each["texts"]), each["label"], marks.get(item, {}), where=f"{where}, example {number}")
        for number, (item, each) in enumerate(contents.items(), 1)
    ]
