"""Explain a corpus of short texts by the command, which is killed twice: memory above the model, rows, seconds.

The texts are pieces of nine words of SST and of film reviews, repeated with new ids up to `--rows`. One process, one
thread. Memory is what the process holds beyond one that has loaded the same model and answered once.
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

import expound
from timing import DATA, MODELS, parse_options, read_memory, write_results

WORDS = 9
MODEL = MODELS / "minilm-sst2"
LOAD = "import expound, sys; m = expound.load(sys.argv[1], device='cpu'); m.predict(m.encode(['a film'])); input()"


def main() -> int:
    """Write the corpus, explain it, and check that every row is explained once; return 1 if a bar is missed."""
    options = parse_options(__doc__, rows=100_000, method="decompx_linear", kills=2, workers=1, most_mib=300.0)
    folder = Path(tempfile.mkdtemp(prefix="expound-corpus-"))
    corpus, output_folder = folder / "corpus.jsonl", folder / "explained"
    texts = write_corpus(corpus, options.rows)
    command = [sys.executable, "-m", "expound", "explain", "--model", str(MODEL), "--data", f"jsonl:{corpus}", "-o"]
    command += [str(output_folder), "--methods", options.method, "--device", "cpu", "--threads", "1"]
    command += ["--workers", str(options.workers)]
    start, model_mib, runs = time.time(), measure_loaded_model(), list[dict[str, float]]()
    for number in range(options.kills + 1):
        target_rows = options.rows * (number + 1) // (options.kills + 1) if number < options.kills else options.rows
        runs.append(run_command(command, output_folder, target_rows // 1000, model_mib, kill=number < options.kills))
        print(runs[-1], flush=True)
    parts = (pq.read_table(path, columns=["index", "texts"]) for path in sorted(output_folder.glob("part-*")))
    rows = [row for part in parts for row in part.to_pylist()]
    is_complete = [row["index"] for row in rows] == list(range(options.rows)) and all(
        row["texts"] == [text] for row, text in zip(rows, texts, strict=False)
    )
    peak_mib = max(each["peak_mib"] for each in runs)
    results = {
        "rows": len(rows),
        "none_lost_or_doubled": is_complete,
        "model_mib": model_mib,
        "runs": runs,
        "peak_mib": peak_mib,
    }
    write_results(results | {"seconds": time.time() - start}, options.output)
    shutil.rmtree(folder)
    return int(not is_complete or (options.workers == 1 and peak_mib > options.most_mib))


def write_corpus(path: Path, count: int) -> list[str]:
    """Write this number of rows, and return their texts."""
    data = [*expound.load_data(f"sst:{DATA / 'sst'}", "train"), *expound.load_data(f"eraser:{DATA / 'movies'}", "dev")]
    words = [(row["text"].split(), row["label"]) for row in data]
    pieces = {" ".join(text[at : at + WORDS]): label for text, label in words for at in range(0, len(text), WORDS)}
    chosen = list(islice(cycle(pieces.items()), count))
    with path.open("w", encoding="utf-8") as file:
        for number, (text, label) in enumerate(chosen):
            file.write(json.dumps({"id": number, "text": text, "label": ("negative", "positive")[label]}) + "\n")
    return [text for text, _ in chosen]


def measure_loaded_model() -> float:
    """Return the MiB of a process that has loaded the model."""
    with subprocess.Popen(
        [sys.executable, "-c", LOAD, str(MODEL)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        mib = 0.0
        while (now := read_memory("VmRSS", process.pid)) != mib or mib < 300:
            mib = now
            time.sleep(3)
        process.kill()
    return mib


def run_command(command: list[str], folder: Path, parts: int, model_mib: float, *, kill: bool) -> dict[str, float]:
    """Run the command until this number of parts exists, or to its end; return MiB above the model, and seconds."""
    start, parts_before, mib_at_parts, peak_mib = time.time(), len(list(folder.glob("part-*"))), dict[int, float](), 0.0
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ) as process:
        while process.poll() is None:
            count = len(list(folder.glob("part-*")))
            mib, peak_mib = read_memory("VmRSS", process.pid), max(peak_mib, read_memory("VmHWM", process.pid))
            if count > parts_before:
                mib_at_parts.setdefault(count, mib - model_mib)
            if kill and count >= parts:
                process.kill()
            time.sleep(0.05)
    assert kill or process.returncode == 0
    part_counts = sorted(mib_at_parts)
    mib_rows = {
        f"at_{1000 * count}_mib": round(mib_at_parts[count])
        for count in {*part_counts[:1], *part_counts[9:10], *part_counts[-1:]}
    }
    reached = {"from": 1000 * parts_before, "to": 1000 * max(part_counts)}
    return {**reached, **mib_rows, "peak_mib": peak_mib - model_mib, "seconds": time.time() - start}


if __name__ == "__main__":
    sys.exit(main())
