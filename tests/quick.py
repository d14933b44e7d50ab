"""Run the fast tests of the packages that changed since a revision, HEAD by default: quick.py [REVISION]."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("slow", "browser", "postgres", "attack", "cluster", "crowd", "gpu")


def list_changed_files(revision: str) -> list[str]:
    """Return the files that differ from the revision, new ones included."""
    commands = (["git", "diff", "--name-only", revision], ["git", "ls-files", "--others", "--exclude-standard"])
    files: list[str] = []
    for command in commands:
        files += subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return files


def find_test_paths(files: list[str]) -> list[str]:
    """Return the test files that changed, and the test folders of the packages that changed."""
    paths = set()
    for file in files:
        parts = Path(file).parts
        if parts[:2] == ("src", "expound") and len(parts) > 3:
            paths.add(f"tests/{parts[2]}")
        elif parts[0] == "tests" and Path(file).name.startswith("test_"):
            paths.add(file)
    return sorted(path for path in paths if (ROOT / path).exists())


def main(revision: str = "HEAD") -> int:
    """Run the tests, say what was left out, and return pytest's exit code."""
    paths = find_test_paths(list_changed_files(revision))
    if not paths:
        print(f"no package and no test changed since {revision}")
        return 0
    marks = " and not ".join(LEFT_OUT)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", f"not {marks}", *paths]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"run: {', '.join(paths)}; left out: tests of other packages, and those marked {', '.join(LEFT_OUT)}")
    # pytest ends with 5 if every test was deselected.
    return 0 if code == 5 else code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
