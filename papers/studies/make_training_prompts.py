#!/usr/bin/env python3
r"""Write prompts on which a language model learns citations, and prompts that judge them.

Usage: make_training_prompts.py SQUAD.json FOLDER

The study is cite-language-model. Each question has its shortest SQuAD answer as response and four passages of
its article; one of them has the answer. Models train on two articles (train.jsonl) and are judged on the other three,
whose questions are divided at random into dev.jsonl, which selects the best epoch, calibration.jsonl, for the bounds of
citations, and held-out.jsonl. A question is asked several times, among other passages each time; held-out-once.jsonl
has each of its questions once.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from make_prompts import SEED, _draw_others, _list_questions, _make_row

TRAINING_ARTICLES = ("Computational_complexity_theory", "Sky_(United_Kingdom)")
DRAWS_OF_TRAINING, DRAWS_OF_TESTS = 4, 3
N_DEV = 40

Question = tuple[str, str, list[str], list[str]]
"""A question, the passage that it needs, its answers, and the paragraphs of its article."""


def main() -> None:
    """Read SQuAD and write the files."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    training: list[Question] = []
    others: list[Question] = []
    for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
        paragraphs = [paragraph["context"] for paragraph in article["paragraphs"]]
        questions = training if article["title"] in TRAINING_ARTICLES else others
        questions.extend((*question, paragraphs) for question in _list_questions(article))
    draw = random.Random(SEED)
    draw.shuffle(training)
    draw.shuffle(others)
    middle = (N_DEV + len(others)) // 2
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "train.jsonl", training, DRAWS_OF_TRAINING, draw)
    _write(folder / "dev.jsonl", others[:N_DEV], 1, draw)
    _write(folder / "calibration.jsonl", others[N_DEV:middle], DRAWS_OF_TESTS, draw)
    _write(folder / "held-out.jsonl", others[middle:], DRAWS_OF_TESTS, draw)
    _write(folder / "held-out-once.jsonl", others[middle:], 1, draw)


def _write(path: Path, questions: list[Question], n_draws: int, draw: random.Random) -> None:
    """Write every question once, then all of them again among other passages, `n_draws` times in all."""
    rows: list[dict[str, Any]] = []
    for _ in range(n_draws):
        for question, needed, answers, paragraphs in questions:
            passages = _draw_others(paragraphs, [needed], answers, draw)
            row = _make_row(question, [needed], passages, answers, "squad", draw)
            del row["answers"]
            rows.append(row | {"response": min(answers, key=len)})
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{path}: {len(rows)} prompts of {len(questions)} questions")


if __name__ == "__main__":
    main()
