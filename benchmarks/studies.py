"""A grid of trainings and judgements by one worker and by two: the share of the time that two take.

Wall seconds of the whole command, processes and planning included, one thread a worker. The CPU seconds beside them
say what a machine with other work to do would have needed alone.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import given, keep

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
    options = given(__doc__, size=2000)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "grid.yaml"
        file.write_text(STUDY.format(size=options.size))
        taken = {count: timed(file, Path(folder) / f"runs-{count}", count) for count in (1, 2)}
    wall, cpu = ({count: both[place] for count, both in taken.items()} for place in (0, 1))
    found = {"seconds": wall, "cpu_seconds": cpu, "ratio": wall[2] / wall[1], "bar": BAR, "load": os.getloadavg()[0]}
    keep(found, options.output)


def timed(file: Path, runs: Path, workers: int) -> tuple[float, float]:
    """Wall seconds of the command, and CPU seconds of all its processes."""
    command = [sys.executable, "-c", "import sys; from exegete.cli import main; sys.exit(main())", "study", "run"]
    more = ["--output-dir", str(runs), "--workers", str(workers), "--threads", "1", "--quiet"]
    begun, before = time.perf_counter(), _cpu()
    subprocess.run([*command, str(file), *more], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun, _cpu() - before


def _cpu() -> float:
    """CPU seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
