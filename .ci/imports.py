"""Imports all modules of the installed package that an extra allows, and asks `expound doctor`: imports.py [EXTRA]."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import expound

PAGES = ("serve", "docs")
NEVER = ("expound.__main__", "expound.testing")
"""What runs, and what needs pytest."""
BROUGHT = {
    "cluster": "ray",
    "lora": "peft",
    "sentencepiece": "sentencepiece",
    "interactions": "shapiq",
    "quantized": "bitsandbytes",
    "inspect": "inspect_ai",
    "docs": "mkdocs",
}


def main(extra: str) -> None:
    """Imports; then the doctor calls this extra whole and the package complete."""
    assert "site-packages" in expound.__file__, expound.__file__
    left_out = NEVER if extra in PAGES else (*NEVER, "expound.serve")
    left_out = left_out if extra == "inspect" else (*left_out, "expound.scorers")
    for module in pkgutil.walk_packages(expound.__path__, "expound.", onerror=lambda _: None):
        if not module.name.startswith(left_out):
            importlib.import_module(module.name)
    if extra in BROUGHT:
        importlib.import_module(BROUGHT[extra])
    doctor = Path(sys.executable).with_name("expound")
    said = subprocess.run([doctor, "doctor"], check=True, capture_output=True, text=True).stdout
    states = {line.split()[1]: line.split()[2] for line in said.splitlines() if line.split()[:1] == ["extra"]}
    assert not extra or states[extra] == "ok", said


if __name__ == "__main__":
    main(*sys.argv[1:] or [""])
