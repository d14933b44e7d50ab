"""Makes what the pages show, before MkDocs builds them: pictures, and tutorials that are run.

`python docs/scripts/make.py` runs the quick tutorials, `--all` every one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import blocks
import notebooks
import pictures

MADE = Path(__file__).parents[2] / ".docs"
QUICK = ("01_trust_an_explanation", "02_train_with_rationales")


def main(everything: bool) -> None:
    """Draws the pictures, runs the reference's examples and tutorials; the first that fails ends it."""
    if wrong := sorted(blocks.missing()):
        sys.exit("\n".join(wrong))
    start = time.monotonic()
    blocks.run(MADE / "work" / "reference")
    sys.stderr.write(f"examples of the reference: {time.monotonic() - start:.0f} s\n")
    start = time.monotonic()
    pictures.write(MADE)
    sys.stderr.write(f"pictures: {time.monotonic() - start:.0f} s\n")
    for file in notebooks.tutorials():
        if everything or file.stem in QUICK:
            sys.stderr.write(f"{file.stem}: {notebooks.execute(file, MADE):.0f} s\n")


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
