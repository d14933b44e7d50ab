"""A corpus of short texts explained by the command, killed twice on its way: memory above the model, rows, seconds.

Pieces of nine words of SST and of film reviews, repeated with ids until there are as many as asked for. One process,
one thread. Memory is what the process holds beyond one that has loaded the same model and answered once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

import pyarrow.parquet as pq

import exegete
from timing import DATA, MODELS, given, keep, memory

WORDS = 9
MODEL = MODELS / "minilm-sst2"
LOADED = "import exegete, sys; m = exegete.load(sys.argv[1], device='cpu'); m.predict(m.encode(['a film'])); input()"


def main() -> int:
    """Makes the corpus, has it explained, and compares what is there with what was asked; 1 where a bar is missed."""
    options = given(__doc__, rows=100_000, method="decompx_linear", kills=2, workers=1, most_mib=300.0)
    folder = Path(tempfile.mkdtemp(prefix="exegete-corpus-"))
    corpus, explained = folder / "corpus.jsonl", folder / "explained"
    texts = write(corpus, options.rows)
    command = [sys.executable, "-m", "exegete", "explain", "--model", str(MODEL), "--data", f"jsonl:{corpus}", "-o"]
    command += [str(explained), "--methods", options.method, "--device", "cpu", "--threads", "1"]
    command += ["--workers", str(options.workers)]
    begun, model, runs = time.time(), loaded(), list[dict[str, float]]()
    for number in range(options.kills + 1):
        until = options.rows * (number + 1) // (options.kills + 1) if number < options.kills else options.rows
        runs.append(run(command, explained, until // 1000, model, kill=number < options.kills))
        print(runs[-1], flush=True)
    parts = (pq.read_table(path, columns=["index", "texts"]) for path in sorted(explained.glob("part-*")))
    rows = [row for part in parts for row in part.to_pylist()]
    right = [row["index"] for row in rows] == list(range(options.rows)) and all(
        row["texts"] == [text] for row, text in zip(rows, texts, strict=False)
    )
    most = max(each["peak_mib"] for each in runs)
    found = {"rows": len(rows), "none_lost_or_doubled": right, "model_mib": model, "runs": runs, "peak_mib": most}
    keep(found | {"seconds": time.time() - begun}, options.output)
    shutil.rmtree(folder)
    return int(not right or (options.workers == 1 and most > options.most_mib))


def write(path: Path, count: int) -> list[str]:
    """Writes this number of rows, and returns their texts."""
    data = [*exegete.load_data(f"sst:{DATA / 'sst'}", "train"), *exegete.load_data(f"eraser:{DATA / 'movies'}", "dev")]
    words = [(row["text"].split(), row["label"]) for row in data]
    pieces = {" ".join(text[at : at + WORDS]): label for text, label in words for at in range(0, len(text), WORDS)}
    chosen = list(islice(cycle(pieces.items()), count))
    with path.open("w", encoding="utf-8") as file:
        for number, (text, label) in enumerate(chosen):
            file.write(json.dumps({"id": number, "text": text, "label": ("negative", "positive")[label]}) + "\n")
    return [text for text, _ in chosen]


def loaded() -> float:
    """MiB of a process that has loaded the model."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADED, str(MODEL)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        held = 0.0
        while (now := memory("VmRSS", process.pid)) != held or held < 300:
            held = now
            time.sleep(3)
        process.kill()
    return held


def run(command: list[str], folder: Path, parts: int, model: float, *, kill: bool) -> dict[str, float]:
    """One run of the command until this number of parts exists, or to its end; MiB above the model, at its peak too."""
    begun, done, held, peak = time.time(), len(list(folder.glob("part-*"))), dict[int, float](), 0.0
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ) as process:
        while process.poll() is None:
            count = len(list(folder.glob("part-*")))
            now, peak = memory("VmRSS", process.pid), max(peak, memory("VmHWM", process.pid))
            if count > done:
                held.setdefault(count, now - model)
            if kill and count >= parts:
                process.kill()
            time.sleep(0.05)
    assert kill or process.returncode == 0
    there = sorted(held)
    span = {f"at_{1000 * count}_mib": round(held[count]) for count in {*there[:1], *there[9:10], *there[-1:]}}
    reached = {"from": 1000 * done, "to": 1000 * max(there)}
    return {**reached, **span, "peak_mib": peak - model, "seconds": time.time() - begun}


if __name__ == "__main__":
    sys.exit(main())
