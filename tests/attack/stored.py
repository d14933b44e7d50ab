"""What a command left in a folder, without what differs from run to run."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pandas as pd

TIMES = re.compile(
    r"seconds|runtime|per_second|memory|created|timestamp|date|finished|since|started|_dir$|^folder$|path"
)
"""Fields that tell how long something took, when, or where."""
LOGS = ("training_args.bin", "events.out")


def of(folder):
    """By relative path what each file says; hidden ones too."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): _content(path, folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(LOGS)
    }


def _content(path, folder):
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return [_timeless(json.loads(line.replace(str(folder), "FOLDER"))) for line in lines]
    if path.suffix == ".parquet":
        table = pd.read_parquet(path)
        for kind in {"metric", "name"} & set(table):
            table = table[~table[kind].astype(str).str.contains(TIMES)].reset_index(drop=True)
        return table[[name for name in table if not TIMES.search(name)]].to_json()
    if path.suffix in (".html", ".csv", ".tex", ".md", ".svg", ".db"):
        return "made of the others"
    return sha256(path.read_bytes()).hexdigest()


def _timeless(value):
    if isinstance(value, dict):
        value = value | ({"files": sorted(value["files"])} if "files" in value else {})  # sizes of files with times
        return {name: _timeless(each) for name, each in value.items() if not TIMES.search(name)}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def difference(folder, expected):
    """Where a folder is not what was expected, and the first lines that differ; empty if it is."""
    found = of(folder)
    names = sorted(name for name in found | expected if found.get(name) != expected.get(name))
    return {name: _lines(found.get(name)) ^ _lines(expected.get(name)) for name in names}


def _lines(content):
    return set(json.dumps(content, indent=1).splitlines())
