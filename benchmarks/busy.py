"""How much longer the demo takes beside a process that keeps a core busy: a ratio, from one run, of wall seconds.

Alone and beside it take turns, the least of each counts. Nobody else should work on the machine meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from timing import given, keep

SPIN = [sys.executable, "-c", "while True: pass"]


def main() -> None:
    """Runs the demo alone and beside a busy process, prints the ratio, and keeps it as JSON."""
    options = given(__doc__, repeats=2, scale="1")
    alone, beside = [], []
    for _ in range(options.repeats):
        alone.append(seconds(options.scale))
        spinning = subprocess.Popen(SPIN)
        try:
            beside.append(seconds(options.scale))
        finally:
            spinning.kill()
            spinning.wait()
    keep({"alone": min(alone), "beside": min(beside), "ratio": min(beside) / min(alone), "bar": 2.5}, options.output)


def seconds(scale: str) -> float:
    """Wall seconds of a demo in an empty folder, threads left to it; `scale` is its EXEGETE_SCALE."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        command = [sys.executable, "-m", "exegete", "demo", "--quiet", "--device", "cpu", "--output-dir", folder]
        subprocess.run(command, env=environment | {"EXEGETE_SCALE": scale}, check=True, capture_output=True)
        return time.monotonic() - begun


if __name__ == "__main__":
    main()
