"""The registry of readers: READERS["sst"] reads the data of the spec sst:FOLDER."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from expound.data.cards import DataCard
from expound.data.registry import Registry

if TYPE_CHECKING:
    import pandas as pd

    from expound.data.readers.base import Reader

READERS: Registry[type[Reader]] = Registry(
    "kind of data",
    "expound.readers",
    {
        "sst": "sst:Sst",
        "rotten_tomatoes": "rotten_tomatoes:RottenTomatoes",
        "emotion": "emotion:Emotion",
        "text_folders": "text_folders:TextFolders",
        "zhang": "zhang:Zhang",
        "hatexplain": "hatexplain:Hatexplain",
        "eraser": "eraser:Eraser",
        "snli": "snli:Snli",
        "xnli": "snli:Xnli",
        "esnli": "esnli:Esnli",
        "squad": "squad:Squad",
        "hotpotqa": "hotpotqa:Hotpotqa",
        "ruler": "ruler:Ruler",
        "mlqe": "mlqe:Mlqe",
        "wmt_qe": "wmt_qe:WmtQe",
        "conll": "conll:Conll",
        "csv": "csv:Csv",
        "jsonl": "jsonl:Jsonl",
        "parquet": "parquet:Parquet",
        "labeled": "labeled:Labeled",
        "hub": "hub:Hub",
        "digits": "digits:Digits",
        "generated": "generated:Generated",
        "label_studio": "marked_json:LabelStudio",
        "argilla": "marked_json:Argilla",
    },
    package="expound.data.readers",
)


def list_datasets() -> pd.DataFrame:
    """Return a table of all datasets and formats: name, what they hold, form of the spec, source, license, example."""
    import pandas as pd

    return pd.DataFrame([asdict(card) for card in READERS.cards(DataCard).values()])
