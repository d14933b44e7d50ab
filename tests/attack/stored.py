"""Reads and compares the files that a command wrote, without fields that differ from run to run."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pandas as pd

TIMES = re.compile(
    r"seconds|runtime|per_second|memory|created|timestamp|date|finished|since|started|_dir$|^folder$|path"
)
"""Fields that hold durations, dates or folders."""
LOGS = ("training_args.bin", "events.out")


def read_folder(folder):
    """The content of each file by its relative path, hidden files included."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): _read_content(path, folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(LOGS)
    }


def _read_content(path, folder):
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return [_remove_times(json.loads(line.replace(str(folder), "FOLDER"))) for line in lines]
    if path.suffix == ".parquet":
        table = pd.read_parquet(path)
        for kind in {"metric", "name"} & set(table):
            table = table[~table[kind].astype(str).str.contains(TIMES)].reset_index(drop=True)
        return table[[name for name in table if not TIMES.search(name)]].to_json()
    if path.suffix in (".html", ".csv", ".tex", ".md", ".svg", ".db"):
        return "made of the others"
    return sha256(path.read_bytes()).hexdigest()


def _remove_times(value):
    if isinstance(value, dict):
        value = value | ({"files": sorted(value["files"])} if "files" in value else {})  # sizes of files with times
        return {name: _remove_times(each) for name, each in value.items() if not TIMES.search(name)}
    return [_remove_times(each) for each in value] if isinstance(value, list) else value


def difference(folder, expected):
    """The lines that differ from what was expected, by file; empty if the folder is as expected."""
    actual = read_folder(folder)
    names = sorted(name for name in actual | expected if actual.get(name) != expected.get(name))
    return {name: _split_lines(actual.get(name)) ^ _split_lines(expected.get(name)) for name in names}


def _split_lines(content):
    return set(json.dumps(content, indent=1).splitlines())
