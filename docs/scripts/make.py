"""Draw the pictures and run the tutorials that the pages show, before MkDocs builds the site.

`python docs/scripts/make.py` runs the concepts and the quick tutorials; `--all` runs every one.
"""

from __future__ import annotations

import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import blocks
import notebooks
import outputs

import pictures

OUTPUT = Path(__file__).parents[2] / ".docs"
QUICK = ("01_trust_an_explanation", "02_train_with_rationales")


def main(everything: bool) -> None:
    """Run the examples of the reference, draw the pictures, and run the tutorials; a failure of one is an error.

    A second process runs examples and commands while this one runs the tutorials and draws. A public name without an
    example, and a line of output that the README shows and its commands do not print, are reported; with `everything`
    they are errors.
    """
    shutil.rmtree(OUTPUT / "work", ignore_errors=True)
    problems = sorted(blocks.find_missing())
    if problems and everything:
        sys.exit("\n".join(problems))
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        missing = pool.submit(run_pages)
        for file in notebooks.tutorials():
            if everything or file.stem in QUICK or file.parent.name == "concepts":
                sys.stderr.write(f"{file.stem}: {notebooks.execute(file, OUTPUT):.0f} s\n")
        start = time.monotonic()
        pictures.write(OUTPUT)
        sys.stderr.write(f"pictures: {time.monotonic() - start:.0f} s\n")
        problems += missing.result()
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    sys.exit(bool(problems) and everything)


def run_pages() -> list[str]:
    """Run the examples of the reference and the commands of the README; return the outputs that are missing."""
    start = time.monotonic()
    blocks.run(OUTPUT / "work" / "reference")
    sys.stderr.write(f"examples of the reference: {time.monotonic() - start:.0f} s\n")
    start = time.monotonic()
    missing = outputs.update_pages(OUTPUT / "work" / "readme")
    sys.stderr.write(f"commands of the README: {time.monotonic() - start:.0f} s\n")
    return missing


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
