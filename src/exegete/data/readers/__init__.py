"""The registry of formats: READERS["sst"] reads what the spec sst:FOLDER names."""

from __future__ import annotations

from exegete.data.readers.base import Reader, Table
from exegete.data.readers.csv import Csv
from exegete.data.readers.digits import Digits
from exegete.data.readers.eraser import Eraser
from exegete.data.readers.generated import Generated
from exegete.data.readers.hub import Hub
from exegete.data.readers.jsonl import Jsonl
from exegete.data.readers.labelled import Labelled
from exegete.data.readers.marked_json import Argilla, LabelStudio
from exegete.data.readers.mlqe import Mlqe
from exegete.data.readers.parquet import Parquet
from exegete.data.readers.snli import Snli
from exegete.data.readers.squad import Squad
from exegete.data.readers.sst import Sst

READERS: dict[str, type[Reader]] = {
    reader.card.name: reader
    for reader in (
        Sst,
        Eraser,
        Snli,
        Squad,
        Mlqe,
        Csv,
        Jsonl,
        Parquet,
        Labelled,
        Hub,
        Digits,
        Generated,
        LabelStudio,
        Argilla,
    )
}

__all__ = ["READERS", "Reader", "Table"]
