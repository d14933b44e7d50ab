"""How long commands take to start, as ratios of CPU seconds to what has to be imported anyway.

`study run --dry-run` on a study file (the data that it names need not be there) against `import pandas`; `explain` on
one sentence, by its usual method (50 points of integrated gradients) and by one of one pass, against importing torch
and transformers' BERT and loading the model. The least of several runs of each.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import given, keep

STUDY = Path(__file__).parents[1] / "studies" / "er-table-2.yaml"
SENTENCE = "A moving film about nothing in particular."
LOAD = """
import sys
import torch
from transformers import AutoTokenizer, BertForSequenceClassification
AutoTokenizer.from_pretrained(sys.argv[1])
BertForSequenceClassification.from_pretrained(sys.argv[1])
"""
BARS = {"dry_run": 2.5, "explain": 1.3}


def main() -> None:
    """Times the commands, prints the ratios, and keeps them as JSON."""
    options = given(__doc__, model="", repeats=5)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or random_model(Path(folder) / "model")
        exegete = ["-m", "exegete"]
        commands = {
            "pandas": ["-c", "import pandas"],
            "dry_run": [*exegete, "study", "run", str(STUDY), "--dry-run"],
            "load": ["-c", LOAD, model],
            "explain": [*exegete, "explain", SENTENCE, "--model", model, "--device", "cpu"],
        }
        commands["explain_by_one_pass"] = [*commands["explain"], "--methods", "input_x_gradient"]
        rounds = [{name: cpu(command, folder) for name, command in commands.items()} for _ in range(options.repeats)]
    seconds = {name: min(each[name] for each in rounds) for name in commands}
    ratios = {"dry_run": seconds["dry_run"] / seconds["pandas"]}
    ratios |= {name: seconds[name] / seconds["load"] for name in ("explain", "explain_by_one_pass")}
    found = {"cpu_seconds": seconds, "ratios": ratios, "bars": BARS, "load": os.getloadavg()[0]}
    keep(found, options.output)


def cpu(command: list[str], folder: str) -> float:
    """CPU seconds of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def random_model(folder: Path) -> str:
    """A BERT of MiniLM's size with random weights and the generated corpus's tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    from exegete.data import generated_tokenizer

    tokenizer = generated_tokenizer()
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    main()
