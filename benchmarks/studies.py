"""A grid of trainings and judgements by one worker and by two: the share of the time that two take.

Wall seconds of the whole command, processes and planning included, one thread a worker.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = """\
datasets:
  train: {{spec: "generated?size={size}", split: train}}
  dev: {{spec: "generated?size={size}", split: dev}}
training: {{films: {{train: train, dev: dev}}}}
models: {{small: {{source: small}}}}
arguments: {{num_train_epochs: 4}}
recipes:
  slow: {{recipe: baseline, arguments: {{learning_rate: 3e-4}}}}
  fast: {{recipe: baseline, arguments: {{learning_rate: 1e-3}}}}
seeds: 4
explainers: [integrated_gradients, attention_last, decompx]
metrics: [auc, aopc_comprehensiveness]
judgements: {{all: {{datasets: dev, explainers: [integrated_gradients, attention_last, decompx], metrics: [auc]}}}}
"""
BAR = 0.6


def main() -> None:
    """Runs the grid twice, prints the ratio, and keeps it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--size", type=int, default=2000, help="training rows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "grid.yaml"
        file.write_text(STUDY.format(size=options.size))
        seconds = {count: timed(file, Path(folder) / f"runs-{count}", count) for count in (1, 2)}
    found = {"seconds": seconds, "ratio": seconds[2] / seconds[1], "bar": BAR, "load": os.getloadavg()[0]}
    print(json.dumps(found, indent=2))
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(found, indent=2) + "\n")


def timed(file: Path, runs: Path, workers: int) -> float:
    """Seconds of the command."""
    command = [sys.executable, "-c", "import sys; from exegete.cli import main; sys.exit(main())", "study", "run"]
    more = ["--output-dir", str(runs), "--workers", str(workers), "--threads", "1", "--quiet"]
    begun = time.perf_counter()
    subprocess.run([*command, str(file), *more], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
