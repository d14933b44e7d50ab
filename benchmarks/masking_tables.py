"""The results of `masking_judged.py` as Markdown: means over the same examples, 95 % bootstrap intervals."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from masking_refined import FORMS, together

NAMES = {
    "sufficiency": ("Suff ↓", -1), "log_odds": ("LO ↓", -1), "comprehensiveness": ("Comp ↑", 1),
    "aopc_sufficiency": ("A-S ↓", -1), "aopc_comprehensiveness": ("A-C ↑", 1),
}  # fmt: skip
DRAWS = 2000
ASIDE = ("ablation", "otherwise", "searched")


def main() -> None:
    """Prints what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    for folder in sorted(path for path in options.results.iterdir() if path.is_dir()):
        methods = judged(folder)
        if methods:
            print(f"\n## {folder.name}\n")
            compared = {name: each for name, each in methods.items() if name.split()[0] not in ASIDE}
            one_pass(methods)
            differences(compared)
            refined(folder, compared)
            rationales(methods)


def judged(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Every method's values by metric; pAML's are those of the masking model chosen by that metric."""
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted(folder.glob("judged-*.json")):
        content = json.loads(path.read_text())
        if "values" not in content:
            continue
        method, values = content["method"], dict(content["values"])
        if method.startswith("pAML "):
            method, values = "pAML", {method.removeprefix("pAML "): values[method.removeprefix("pAML ")]}
        found.setdefault(method, {}).update(values | {"seconds": [content["seconds_an_example"]]})
    return found


def one_pass(methods: dict[str, dict[str, list[float]]]) -> None:
    """Methods × metrics."""
    print("| | " + " | ".join(title for title, _ in NAMES.values()) + " | CPU s an example |")
    print("| --- |" + " --- |" * (len(NAMES) + 1))
    for method, values in methods.items():
        cells = [spread(values[name]) if name in values else "" for name in NAMES]
        print(f"| {method} | " + " | ".join(cells) + f" | {values['seconds'][0]:.3f} |")


def refined(folder: Path, methods: dict[str, dict[str, list[float]]]) -> None:
    """What choosing among the maps of refinement, and among those of the controls, leads to, metric by metric."""
    for name, (title, sign) in NAMES.items():
        tables = {form: there for form in FORMS if (there := together(folder, form, name))}
        for form, there in tables.items():
            rows = sorted(there)
            table = sign * np.array([there[row] for row in rows])
            print(f"\n### {form}, {title} on {len(rows)}, beside others on the same examples\n")
            for maps in (1, 2, 4, 6, table.shape[1]):
                print(f"- best of the first {maps}: {spread(sign * table[:, :maps].max(1))}")
            print(f"- the last: {spread(sign * table[:, -1])}")
            print(f"- best better than the first by {spread(table.max(1) - table[:, 0])}")
            for other, theirs in tables.items():
                both = [row for row in rows if row in theirs]
                if other != form and both:
                    mine = np.array([max(sign * value for value in there[row]) for row in both])
                    gain = mine - np.array([max(sign * value for value in theirs[row]) for row in both])
                    print(f"- best better than that of {other}, on {len(both)}, by {spread(gain)}")
            for method, values in methods.items():
                if name in values:
                    one = np.array([values[name][row] for row in rows])
                    gain = spread(table.max(1) - sign * one)
                    print(f"- {method} {spread(one)}; best better by {gain}")


def differences(methods: dict[str, dict[str, list[float]]]) -> None:
    """PAML against the others, example by example; positive is better for pAML."""
    for method, values in methods.items():
        if method == "pAML" or "pAML" not in methods:
            continue
        cells = [
            f"{title[:-2]} {spread(sign * (np.array(methods['pAML'][name]) - np.array(values[name])))}"
            for name, (title, sign) in NAMES.items()
            if name in values and name in methods["pAML"]
        ]
        print(f"- pAML better than {method} by: " + ", ".join(cells))


def rationales(methods: dict[str, dict[str, list[float]]]) -> None:
    """Macro and micro F1 of the first 25 tokens."""
    for method, values in methods.items():
        if "hits" in values:
            hits, chosen, marked = (sum(values[name]) for name in ("hits", "chosen", "marked"))
            print(f"- {method}: macro F1 {spread(values['token_f1'])}, micro F1 {2 * hits / (chosen + marked):.3f}")


def spread(values: Sequence[float] | np.ndarray | Tensor) -> str:
    """The mean and its 95 % interval over examples."""
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    drawn = np.random.default_rng(0).choice(known, (DRAWS, len(known))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{known.mean():.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
