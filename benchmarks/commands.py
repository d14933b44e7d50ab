"""Compare the time of commands with that of their necessary parts: ratios of the least CPU or wall seconds of one run.

`start`: `train ivra --help` over `import pandas`; `explain` on one sentence, by its default method (50 points of
integrated gradients) and by one of one pass, over importing torch and transformers' BERT and loading the model.
`busy`: the demo beside a process that keeps a core busy, over the demo alone. `workers`: a grid of trainings and
judgements by two workers over one, wall seconds; the CPU seconds say what a machine with other work would have needed.
Run it on a machine that is otherwise idle.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from timing import parse_options, write_results

SPIN = [sys.executable, "-c", "while True: pass"]
EXPOUND = ["-m", "expound"]
SENTENCE = "A moving film about nothing in particular."
LOAD = """
import sys
import torch
from transformers import AutoTokenizer, BertForSequenceClassification
AutoTokenizer.from_pretrained(sys.argv[1])
BertForSequenceClassification.from_pretrained(sys.argv[1])
"""
GRID = """\
from expound_papers.study import Data, Model, Study, Training, register
@register
def grid(study: Study) -> None:
    study.seeds, study.arguments = 4, {{"num_train_epochs": 4}}
    train, dev = (Data(name, "generated?size={size}", split=name) for name in ("train", "dev"))
    data, small = Training("films", train, dev), Model("small", "small")
    rates = {{"slow": 3e-4, "fast": 1e-3}}
    runs = []
    for name, rate in rates.items():
        runs.append(study.train(name, "baseline", data, small, arguments={{"learning_rate": rate}}))
    explainers = {{name: name for name in ("integrated_gradients", "attention_last", "decompx")}}
    study.judge("all", runs, dev, explainers, {{"rationale_auc": "rationale_auc"}})
"""
BARS = {"train_help": 2.5, "explain": 1.3, "busy": 2.5, "workers": 0.6}


def main() -> None:
    """Run the chosen parts, print the ratios, and write them as JSON."""
    options = parse_options(__doc__, parts=["start", "busy", "workers"], model="", repeats=5, scale="1", size=2000)
    parts = {"start": measure_start, "busy": measure_busy, "workers": measure_workers}
    results = {part: parts[part](options) for part in options.parts}
    write_results(results | {"bars": BARS, "load": os.getloadavg()[0]}, options.output)


def measure_start(options: Any) -> dict[str, Any]:
    """Return the CPU seconds of whole commands, and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or save_random_model(Path(folder) / "model")
        commands = {
            "pandas": ["-c", "import pandas"],
            "train_help": [*EXPOUND, "train", "ivra", "--help"],
            "load": ["-c", LOAD, model],
            "explain": [*EXPOUND, "explain", SENTENCE, "--model", model, "--device", "cpu"],
        }
        commands["explain_by_one_pass"] = [*commands["explain"], "--methods", "input_x_gradient"]
        rounds = [
            {name: measure_process(each, folder)[1] for name, each in commands.items()} for _ in range(options.repeats)
        ]
    seconds = {name: min(each[name] for each in rounds) for name in commands}
    ratios = {"train_help": seconds["train_help"] / seconds["pandas"]}
    ratios |= {name: seconds[name] / seconds["load"] for name in ("explain", "explain_by_one_pass")}
    return {"cpu_seconds": seconds, "ratios": ratios}


def measure_busy(options: Any) -> dict[str, float]:
    """Return the wall seconds of the demo in an empty folder, alone and beside a busy process, and their ratio.

    The demo chooses its number of threads, and `--scale` is its EXPOUND_SCALE.
    """
    alone, beside = [], []
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    demo = [*EXPOUND, "demo", "--quiet", "--device", "cpu", "--output-dir", "."]
    for _ in range(2):
        for durations, others in ((alone, []), (beside, [SPIN])):
            processes = [subprocess.Popen(other) for other in others]
            try:
                with tempfile.TemporaryDirectory() as folder:
                    durations.append(measure_process(demo, folder, environment | {"EXPOUND_SCALE": options.scale})[0])
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
    return {"alone": min(alone), "beside": min(beside), "ratio": min(beside) / min(alone)}


def measure_workers(options: Any) -> dict[str, Any]:
    """Return the wall and CPU seconds of the whole command, with one thread per worker."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "grid.py").write_text(GRID.format(size=options.size))
        command = [*EXPOUND, "study", "run", "grid.py", "--threads", "1", "--quiet", "--workers"]
        costs = {
            count: measure_process([*command, str(count), "--output-dir", f"runs-{count}"], folder) for count in (1, 2)
        }
    wall, cpu = ({count: each[index] for count, each in costs.items()} for index in (0, 1))
    return {"seconds": wall, "cpu_seconds": cpu, "ratio": wall[2] / wall[1]}


def measure_process(command: list[str], folder: str, environment: dict[str, str] | None = None) -> tuple[float, float]:
    """Run a Python process, and return its wall and CPU seconds, with those of the processes that it starts."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True, cwd=folder, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def save_random_model(folder: Path) -> str:
    """Save a BERT of MiniLM's size with random weights and the generated corpus's tokenizer, and return its folder."""
    from transformers import BertConfig, BertForSequenceClassification

    from expound.data import generated_tokenizer

    tokenizer = generated_tokenizer()
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    main()
