"""How much longer the demo takes beside a process that keeps a core busy: a ratio, from one run, of wall seconds.

Alone and beside it take turns, the least of each counts. Nobody else should work on the machine meanwhile.
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

BAR = 2.5
SPIN = [sys.executable, "-c", "while True: pass"]


def main() -> None:
    """Runs the demo alone and beside a busy process, prints the ratio, and keeps it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--scale", default="1", help="EXEGETE_SCALE of the demo")
    options = parser.parse_args()
    alone, beside = [], []
    for _ in range(options.repeats):
        alone.append(seconds(options.scale))
        spinning = subprocess.Popen(SPIN)
        try:
            beside.append(seconds(options.scale))
        finally:
            spinning.kill()
            spinning.wait()
    found = {"alone": min(alone), "beside": min(beside), "ratio": min(beside) / min(alone), "bar": BAR}
    print(json.dumps(found, indent=2))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(found, indent=2) + "\n")


def seconds(scale: str) -> float:
    """Wall seconds of a demo in an empty folder, threads left to it."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        command = [sys.executable, "-m", "exegete", "demo", "--quiet", "--device", "cpu", "--output-dir", folder]
        subprocess.run(command, env=environment | {"EXEGETE_SCALE": scale}, check=True, capture_output=True)
        return time.monotonic() - begun


if __name__ == "__main__":
    main()
