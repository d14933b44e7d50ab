"""Train each recipe on tiny models, whole and with LoRA, by the command line and from Python: what a step costs.

`runs`: a cell is a recipe, a family of models, and full or LoRA training. It is trained in a process of its own on 64
generated reviews in batches of 8, for an epoch by the command line and for one from Python; its figures are the median
CPU time from one step to the next over that of `baseline` in the same column, and the memory that the cell needs
beyond what the process holds before it. `control`: what `--control` says of the defaults, on 1,000 sentences of SST and
on 200 film reviews of 512 tokens. Models start from $EXPOUND_BACKBONE, or from a model of sentiment where the recipe
needs one that knows the task. `--short` trains on reviews for two epochs in bfloat16, and judges on 50 of them: the
defaults take hours on one core.

Finished cells stand in the output file, and the same command adds those that are missing. `--page` writes the tables
into docs/your_training.md.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, TrainerCallback

import expound
from expound.cli import main as run_command
from expound.data.generated.tokenizer import generated_tokenizer
from expound.recipes import RECIPES
from timing import DATA, MODELS, parse_options, read_memory, write_results

PAGE = Path(__file__).parents[1] / "docs" / "your_training.md"
MARK = re.compile(r"(?<=<!-- recipes -->\n).*?(?=<!-- /recipes -->)", re.DOTALL)
SAID = re.compile(
    r"(?P<metric>\w+) on (?P<rows>\d+) dev rows: (?P<after>\S+) against (?P<before>\S+) of .*: (?P<change>\S+) "
    r"\(95 % (?P<low>\S+) to (?P<high>\S+), .*\), (?P<verdict>.+)"
)
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "modernbert": {"local_attention": 16, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3},
    "llama": {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
}
SIZES = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
KINDS = ("full", "lora")
PARAMS: dict[str, dict[str, Any]] = {
    "custom": {"objectives": "cross_entropy,attribution_entropy"},
    "cite": {"n_samples": 4},
    "at2": {"n_samples": 4},
}
BASELINES = {"baseline", "lora"}
NO_LORA = {"at2": "fits coefficients, no weights"}
CONTROLS: dict[str, list[str]] = {
    "er_joint": [], "er_constrained": [], "rrr": [], "regex": [], "extractor": [],
    "ivra": ["--criteria", "comprehensiveness"], "ivra sufficiency": ["--criteria", "sufficiency"], "aml": [],
}  # fmt: skip
# 200 reviews teach a model that is only pretrained no task, so that there is nothing to select or to rely on.
FINE_TUNED = {"sst": {"ivra", "aml"}, "reviews": {"ivra", "aml", "regex", "extractor"}}
CORPORA: dict[str, list[str]] = {
    "sst": [f"sst:{DATA / 'sst'}", "--limit=1000"],
    "reviews": [f"eraser:{DATA / 'movies'}", "--limit=200", "--max-length=512"],
}

# Few reviews at a time, for their memory; a step still has 16.
SHORT = ["--epochs=2", "--set=bf16=true", "--batch-size=2", "--set=gradient_accumulation_steps=8"]
SHORT += ["--set=per_device_eval_batch_size=4"]
SHORT_DEV = 50


class Clock(TrainerCallback):
    """Notes the CPU time at which each step begins."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.begun.append(time.process_time())


def main() -> None:
    """Measure the cells that are missing, write them, and fill the page if that is asked for."""
    options = parse_options(__doc__, parts=["runs"], recipes=[*RECIPES], corpora=[*CORPORA], short=False, page=False)
    results = json.loads(options.output.read_text()) if options.output and options.output.is_file() else {}
    for part in options.parts:
        known = results.setdefault(part, {})
        for name, cell in list_cells(part, options.recipes, options.corpora).items():
            if name not in known:
                known[name] = in_own_process(*cell) if part == "runs" else measure_control(*cell, short=options.short)
                write_results(results, options.output)
    if options.page:
        PAGE.write_text(MARK.sub(lambda _: make_tables(results), PAGE.read_text()))


def list_cells(part: str, recipes: list[str], corpora: list[str]) -> dict[str, tuple[Any, ...]]:
    """Return the cells of a part by name."""
    cells = dict[str, tuple[Any, ...]]()
    if part == "control":
        for corpus, (name, extra) in product(corpora, CONTROLS.items()):
            if name.split()[0] in recipes:
                cells[f"{name}, {corpus}"] = (name.split()[0], extra, corpus)
        return cells
    for recipe, family, kind in product(recipes, FAMILIES, KINDS):
        cells[f"{recipe} {family} {kind}"] = (recipe, family, kind)
    return cells


def in_own_process(recipe: str, family: str, kind: str) -> dict[str, Any]:
    """Return the figures of a cell that is measured in a child process."""
    if kind == "lora" and recipe in NO_LORA:
        return {"note": NO_LORA[recipe]}
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            found = measure_run(recipe, family, kind)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writer, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process was killed"}


def measure_run(recipe: str, family: str, kind: str) -> dict[str, Any]:
    """Train a cell by the command line and from Python; return exit status, seconds of a step, and MiB."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        params, start = dict(PARAMS.get(recipe, {})), save_model(family, Path(folder) / family)
        if recipe == "aml" and family == "llama":
            params["backbone"] = save_model("bert", Path(folder) / "bert")
        if recipe == "smat":
            params["teacher"] = save_model(family, Path(folder) / "teacher", seed=1)
        before = read_memory("VmRSS")
        rank = {"lora_rank": 4} if kind == "lora" else {}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in {**params, **rank}.items()]
        words += ["--data", "generated?size=64", "--device", "cpu", "--quiet", "--output-dir", f"{folder}/command"]
        words += ["--set=max_steps=8", "--batch-size=64"] if recipe == "at2" else ["--epochs=1", "--batch-size=8"]
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            status = run_command(["train", recipe, "--model", start, *words])
        if status:
            return {"error": said.getvalue().strip().splitlines()[-1]}
        clock = Clock()
        arguments = {"max_steps": 8} if recipe == "at2" else {"num_train_epochs": 1, "per_device_train_batch_size": 8}
        began = time.process_time()
        expound.train(
            start, "generated?size=64", recipe, output_dir=f"{folder}/python", args=arguments | {"disable_tqdm": True},
            options={"device": "cpu", "callbacks": [] if recipe == "at2" else [clock], **rank}, **params,
        )  # fmt: skip
        steps = [after - first for first, after in pairwise(clock.begun)]
        figures = {"step_seconds": median(steps) if steps else None, "seconds": time.process_time() - began}
        return figures | {"MiB": read_memory() - before}


def save_model(family: str, folder: Path, seed: int = 0) -> str:
    """Save a random model of a family with its tokenizer, and return the folder."""
    torch.manual_seed(seed)
    tokenizer = generated_tokenizer()
    sizes = {**SIZES, **FAMILIES[family], "vocab_size": len(tokenizer), "max_position_embeddings": 512}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(family, **sizes, num_labels=2))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def measure_control(recipe: str, extra: list[str], corpus: str, short: bool) -> dict[str, Any]:
    """Return what `--control` prints of a recipe's defaults, trained on a corpus."""
    torch.set_num_threads(1)
    said = io.StringIO()
    start = MODELS / "minilm-sst2" if recipe in FINE_TUNED[corpus] else os.environ["EXPOUND_BACKBONE"]
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(said):
        data = [*CORPORA[corpus]]
        if short and corpus == "reviews":
            data = [f"eraser:{link_with_fewer_reviews(Path(folder))}", *data[1:], *SHORT]
        words = ["--data", *data, "--device=cpu", "--quiet", *extra, "--output-dir", f"{folder}/run"]
        status = run_command(["train", recipe, "--model", str(start), "--control", *words])
    if status:
        raise SystemExit(f"{recipe} on {corpus} ended with status {status}")
    return {"said": said.getvalue().splitlines()[-3:], "seconds": time.process_time() - began, "short": short}


def link_with_fewer_reviews(folder: Path) -> Path:
    """Return a folder with the film reviews whose dev split has every fourth one, as many of each class."""
    few = folder / "movies"
    few.mkdir()
    for path in (DATA / "movies").iterdir():
        (few / path.name).symlink_to(path)
    (few / "val.jsonl").unlink()
    lines = (DATA / "movies" / "val.jsonl").read_text().splitlines(keepends=True)
    (few / "val.jsonl").write_text("".join(lines[:: len(lines) // SHORT_DEV][:SHORT_DEV]))
    return few


def make_tables(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the tables of the page: costs, and what `--control` says."""
    tables = make_table(results["runs"])
    if results.get("control"):
        tables += "\n| recipe | corpus | metric | control | recipe's | difference [95 %] | dev rows | verdict |\n"
        tables += "| --- | --- | --- | ---: | ---: | --- | ---: | --- |\n"
    for name, cell in results.get("control", {}).items():
        recipe, corpus = name.split(", ")
        found = SAID.search("\n".join(cell["said"]))
        if found:
            tables += "| `{}` | {} | {} | {} | {} | {} [{}, {}] | {} | {} |\n".format(
                recipe, corpus, *found.group("metric", "before", "after", "change", "low", "high", "rows", "verdict")
            )
    return tables


def make_table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the page: the cost of a step in plain steps, and MiB, for each recipe and column."""
    columns = list(product(FAMILIES, KINDS))
    lines = ["| recipe | " + " | ".join(f"{family}, {kind}" for family, kind in columns) + " |"]
    lines.append("| --- " * (len(columns) + 1) + "|")
    for recipe in dict.fromkeys(name.split()[0] for name in cells):
        shown = []
        for family, kind in columns:
            cell = cells.get(f"{recipe} {family} {kind}", {})
            # A cell of an earlier run has the step of its own baseline.
            plain = cell.get("plain_seconds") or cells.get(f"baseline {family} {kind}", {}).get("step_seconds")
            text = cell.get("note") or cell.get("error") or "–"
            if "seconds" in cell:
                text = f"{cell['step_seconds'] / plain:.1f}" if cell["step_seconds"] and plain else "runs"
                text += f"; {cell['MiB']:.0f}" if "MiB" in cell else ""
            shown.append(text)
        lines.append(f"| `{recipe}` | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
