"""Rationales that people marked in a study of `exegete serve`, read from the study's own storage."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from exegete.data.cards import DataCard
from exegete.data.marked import MAJORITY, Marked, marked_table
from exegete.data.readers.base import Row
from exegete.data.readers.layouts import Divided
from exegete.errors import ExegeteError, unknown

if TYPE_CHECKING:
    from datasets import Features

STUDIES = "SELECT name FROM project WHERE kind = 'highlight' ORDER BY id"
MARKS = """
SELECT item.id, item.content, person.name, answer.content
FROM project JOIN item ON item.project_id = project.id
LEFT JOIN answer ON answer.item_id = item.id AND answer.annotator_id IN (
  SELECT id FROM annotator WHERE annotator.slot IS NULL OR annotator.status = 'complete')
LEFT JOIN annotator AS person ON person.id = answer.annotator_id
WHERE project.name = ? AND item.role = '' ORDER BY item.number, person.id
"""


@dataclass(frozen=True, kw_only=True)
class Study(Divided):
    """A study of the kind highlight in an SQLite storage, by its `name`; default: the only one.

    Of people who take part by a protocol, those count who completed it. `share`: a character is evidence when at least
    this share of an example's people marked it.
    """

    card: ClassVar[DataCard] = DataCard(
        name="study", what="texts and pairs with the spans that people marked in a study of `exegete serve`",
        form="study:FILE.db, with ?name=STUDY&share=0.5 of the people who must agree",
        source="collected by `exegete serve --study NAME --kind highlight`", licence="yours",
        example="study:exegete-studies.db?name=films",
    )  # fmt: skip
    name: str = ""
    share: float = MAJORITY

    def keyed(self, path: Path) -> tuple[Features, Iterable[tuple[str, Row]]]:
        """The marked examples, divided by their first texts."""
        if not path.is_file():
            raise ExegeteError(f"there is no file {path}: expected the storage of a study, as exegete-studies.db")
        try:
            with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as storage:
                features, rows = marked_table(_examples(storage, self.name, str(path)), self.share)
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ExegeteError(f"{path} is no storage of studies: {error}") from error
        return features, ((row["text"], row) for row in rows)


def _examples(storage: sqlite3.Connection, name: str, where: str) -> list[Marked]:
    names = [row[0] for row in storage.execute(STUDIES)]
    if not name and len(names) != 1:
        raise ExegeteError(f"{where}: expected ?name= one of its studies in which words are marked: {', '.join(names)}")
    if name and name not in names:
        raise unknown("study in which words are marked", name, names)
    contents: dict[int, Row] = {}
    marks: dict[int, dict[str, tuple[tuple[int, int, int], ...]]] = {}
    for item, content, person, answer in storage.execute(MARKS, (name or names[0],)):
        contents[item] = json.loads(content)
        if person is not None:
            said = json.loads(answer)["marks"]
            marks.setdefault(item, {})[person] = tuple((side, start, end) for side, start, end in said)
    return [
        Marked(tuple(each["texts"]), each["label"], marks.get(item, {}), where=f"{where}, example {number}")
        for number, (item, each) in enumerate(contents.items(), 1)
    ]
