"""Write the page on performance from the figures in `benchmarks/results/`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import curve

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MACHINE = (
    "All figures are CPU seconds of one thread on a virtual x86-64 machine with two cores, with torch 2.13 and "
    "transformers "
    "5.23. Both sides of a comparison were measured in the same run. **No GPU figure exists yet**: `benchmarks/gpu.py` "
    "measures methods, `compare` and training steps beside captum on a machine that has one."
)


def page() -> str:
    """Return the page as Markdown."""
    return "\n\n".join([
        "# Performance",
        MACHINE,
        "F is one forward pass of the model, B one backward pass. Every table names the program in "
        "`benchmarks/` that measures "
        "it; its figures are in [results](benchmarks/results/attribution.json) beside it, and `make bench` "
        "measures them anew.",
        *_classifiers(_read("attribution")),
        *_language_models(_read("language_model"), _read("generation")),
        *_decomposition(_read("decomposition")),
        *_training(_read("training")),
        *_memory(_read("corpus"), _read("big_model"), _read("comparing"), _read("faithfulness")),
    ]) + "\n"  # fmt: skip


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def _classifiers(found: Mapping[str, Any]) -> list[str]:
    integrated, coalitions = found["integrated_gradients"], found["coalitions"]
    pairs = [("integrated_gradients", integrated["captum"], integrated["integrated_gradients"])]
    for method, sides in coalitions.items():
        pairs += [(f"{method}, removed words", sides["captum"], sides["remove"])]
        pairs += [(f"{method}, mask tokens", sides["captum"], sides["mask"])]
    sequential = found["sequential"]
    pairs += [("sequential_integrated_gradients", sequential["captum"], sequential["n_steps=50"])]
    pairs += [("sequential_integrated_gradients?n_steps=auto", sequential["captum"], sequential["n_steps=auto"])]
    rows = []
    for name, other, own in pairs:
        rows.append(
            (f"`{name}`", _number(other["cpu_s"]), _number(own["cpu_s"]), _number(own["cpu_s"] / other["cpu_s"]))
        )
    calls, ratios = found["calls"]["cpu_s"], found["calls"]["ratios"]
    single = []
    for method, by_unit in ratios.items():
        compared = ", ".join(f"{ratio:.2f} {unit}" for unit, ratio in by_unit.items())
        single.append((f"`{method}`", f"{1000 * calls[method]:.0f}", compared))
    return [
        "## Classifiers, beside captum",
        f"MiniLM-L6 (22 M parameters), {found['sentences']} sentences of {min(found['tokens'])} to "
        f"{max(found['tokens'])} "
        "tokens, captum at its best batch size, the same settings (`attribution.py`). Captum replaces words by "
        "mask tokens; "
        "removed words make shorter inputs.",
        _table(("method", "captum, s", "expound, s", "expound / captum"), rows),
        f"One call for one sentence of {found['calls']['tokens']} tokens; the ratio is to passes of the model "
        f"alone, or to "
        "captum:",
        _table(("method", "ms", "ratio"), single),
        "Methods by rules, relative to one forward and one backward pass: "
        + ", ".join(f"`{name}` {ratio:.2f}" for name, ratio in found["rules"].items())
        + ".",
    ]


def _language_models(found: Mapping[str, Any], generation: Mapping[str, Any]) -> list[str]:
    prompts: Mapping[str, Any] = found["prompts"]
    methods = dict.fromkeys(name for measured in prompts.values() for name in measured)
    heads = [prompt.partition(" +")[0] for prompt in prompts]
    passes, memory = [], []
    for method in methods:
        # "granularity" is the former name of `unit` in the figures.
        title = method if method.startswith(("captum", "inseq")) else f"`{method.replace('granularity', 'unit')}`"
        cells = [measured.get(method) for measured in prompts.values()]
        passes.append((title, *("" if cell is None else f"{cell['forward_passes']:.1f}" for cell in cells)))
        memory.append((title, *("" if cell is None else f"{cell['peak_mib']}" for cell in cells)))
    lines = {}
    for method in ("decompx_linear", "input_x_gradient", "flash_trace", "captum: input × gradient"):
        points = [
            (float(head), measured[method]["peak_mib"]) for head, measured in zip(heads, prompts.values(), strict=True)
        ]
        lines[method.replace("captum: input × gradient", "captum, I×G")] = points
    rows = [(name, f"{value:.1f}") for name, value in generation["forward_passes"].items()]
    prompt, answer = generation["tokens"]
    return [
        "## Language models, beside captum and inseq",
        f"SmolLM2 (135 M parameters, {found['dtype']}), an answer of 24 tokens explained by the documents of "
        f"its prompt "
        "(`language_model.py`). Forward passes of the whole prompt that each method takes, by the prompt's "
        "length in tokens:",
        _table(("method", *heads), passes),
        "Memory beyond the model, in MiB; the last column is in float32 for methods that keep a graph:",
        _table(("method", *heads), memory),
        f'<div class="picture">{curve.draw_chart(lines, "Memory by length of the prompt", "tokens")}</div>',
        "Memory in MiB by tokens of the prompt.",
        f"A small random decoder, a prompt of {prompt} and an answer of {answer} tokens, each token of the "
        f"answer explained "
        "(`generation.py`):",
        _table(("what is explained", "forward passes"), rows),
        "Logits are computed for the answer's tokens alone, so a larger vocabulary costs by the length of the "
        "answer and not of "
        "the prompt. How time and memory grow with the vocabulary has not been measured.",
    ]


def _decomposition(found: Mapping[str, Any]) -> list[str]:
    methods = dict.fromkeys(name for measured in found.values() for name in measured)
    rows = []
    for method in methods:
        cells = []
        for measured in found.values():
            cell = measured.get(method)
            cells.append("" if cell is None else f"{cell['passes']:.1f} F, {cell['peak_gb']:.1f} GB")
        rows.append((f"`{method}`", *cells))
    return [
        "## Decomposition",
        "Forward passes, and memory of the whole process, on MiniLM-L6; the text of 1,024 tokens on a model of "
        "BERT-base's size "
        "(`decomposition.py`).",
        _table(("method", *found), rows),
    ]


def _training(found: Mapping[str, Any]) -> list[str]:
    rows = [(f"`{name}`", f"{step['ratio']:.2f}") for name, step in found["guided"].items() if name != "plain"]
    return [
        "## Training",
        "A step with an explanation loss, relative to a plain step (MiniLM-L6, batches of 16, `training.py`):",
        _table(("guided explainer", "relative to a plain step"), rows),
    ]


def _memory(
    corpus: Mapping[str, Any], big: Mapping[str, Any], comparing: Mapping[str, Any], faithfulness: Mapping[str, Any]
) -> list[str]:
    methods = [name for name, value in big.items() if isinstance(value, dict)]
    peak = max(big[name]["peak_gb"] for name in methods)
    return [
        "## Large models, corpora and comparisons",
        f"- A Llama with {big['parameters'] / 1e9:.2f} billion random weights in {big['dtype']} takes "
        f"{big['loaded_gb']:.1f} GB; "
        f"its explanations ({', '.join(f'`{name}`' for name in methods)}) at most {peak:.1f} GB (`big_model.py`).\n"
        f"- `expound explain` of {corpus['rows']:,} rows, interrupted twice, needs at most "
        f"{corpus['peak_mib']:.0f} MiB beyond "
        f"the model, whatever the number of rows (`corpus.py`).\n"
        f"- `compare` with all methods and metrics takes {comparing['compare/distinct']:.2f} times its distinct passes "
        "(`comparing.py`).\n"
        f"- Faithfulness curves of ten methods take {faithfulness['sentences']['engine/loop']:.2f} of the time "
        f"of a plain loop "
        f"over perturbed inputs for sentences, and {faithfulness['texts of 256 tokens']['engine/loop']:.2f} for "
        f"texts of 256 "
        "tokens (`faithfulness.py`).",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
