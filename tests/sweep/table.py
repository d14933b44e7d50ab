"""Writes the table of a sweep into a page: on how many architectures each method is exact; the others it refuses."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path

HEADS = (
    "SequenceClassification", "CausalLM", "Seq2SeqLM", "TokenClassification", "MaskedLM", "ImageClassification"
)  # fmt: skip
NOTE = f"""\
Number of architectures of transformers {version("transformers")}, tiny and random, on which a method passes; on
the others it is refused. Gradients, occlusion of texts and attention of one stack are compared with slow
references of the Hugging Face model alone; `decompx` passes if the contributions of `decompx_classifier` sum to
the logit, and a test compares it and `alti` on seven causal architectures with finite differences of a network that
is held; backward rules pass if they explain the whole prediction, and a test compares them on a dozen architectures
with finite differences of a network that is held; `deep_lift` refuses models on which its scores do not sum to the
change of the output. All others, occlusion of images, and attention of encoder-decoders are only compared with
themselves on the example without padding, which shows that padding does not change the scores, not that they are
right."""
START, END = "<!-- sweep -->", "<!-- /sweep -->"


def make_table(rows: list[dict[str, str]]) -> str:
    """A line per method, a column per head: exact of all, and the other cases if there are any."""
    absent = [row for row in rows if row["state"] == "not built"]
    rows = [row for row in rows if row["state"] != "not built"]
    built = {head: {row["type"] for row in rows if row["head"] == head} for head in HEADS}
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in rows:
        counts[row["method"]][row["head"]][row["state"]] += 1
    heads = [head for head in HEADS if built[head]]
    lines = [
        NOTE,
        "",
        "| method | " + " | ".join(f"{head} ({len(built[head])})" for head in heads) + " |",
        "| --- |" + " --- |" * len(heads),
    ]
    for method, by_head in counts.items():
        cells = []
        for head in heads:
            count = by_head[head]
            wrong = count.total() - count["exact"] - count["refused"]
            cells.append(f"{count['exact']}" + (f", {wrong} wrong" if wrong else ""))
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    wrong = [row for row in rows if row["state"] not in ("exact", "refused")]
    if wrong:
        lines += ["", "Neither exact nor refused, so not to be trusted:", ""]
        lines += [f"- `{row['type']}`, {row['head']}, `{row['method']}`: {row['state']}" for row in wrong]
    if absent:
        names = sorted({f"`{row['type']}` ({row['head']})" for row in absent})
        lines += ["", f"Not built from a configuration: {', '.join(names)}."]
    return "\n".join(lines)


def main(figures: str, page: str) -> None:
    rows = [json.loads(line) for line in Path(figures).read_text().splitlines()]
    text = Path(page).read_text()
    before, rest = text.split(START)
    Path(page).write_text(f"{before}{START}\n{make_table(rows)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
