"""Train adapters of a Llama of a billion random weights: the memory that a student costs beside its teacher.

Two steps of LoRA, of IvRA with a student of simulatability, and of SMaT with a teacher of adapters, each on 4
generated reviews, in processes of their own. Weights are read from one file, whose pages all models of a process share;
the figure is the most memory that is not such pages, in MiB. What adapters and their optimizer take for a model of
seven billion weights is counted from its shapes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from peft import get_peft_model
from transformers import LlamaConfig, LlamaForSequenceClassification

import expound
from expound.data.generated.tokenizer import generated_tokenizer
from expound.training.loop.lora import make_config
from timing import parse_options, read_memory, write_results

KINDS = ("lora", "ivra", "smat")
RANK = 8
# A weight, its gradient and two moments of Adam, in float32.
BYTES_TO_TRAIN = 16


def main() -> None:
    """Save a model, train it in each way in a process of its own, and count what a larger one would take."""
    options = parse_options(__doc__, layers=16, kind="", folder="")
    if options.kind:
        print(train(options.kind, Path(options.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        parameters = save_model(Path(folder) / "start", options.layers)
        results = {"parameters": parameters, "weights_MiB": 2 * parameters / 2**20, "rank": RANK}
        for kind in KINDS:
            command = [sys.executable, __file__, "--kind", kind, "--folder", folder]
            ended = subprocess.run(command, check=True, capture_output=True, text=True)
            results[kind] = float(ended.stdout.splitlines()[-1])
    results["adapters_of_7B_MiB"] = count_adapters(LlamaConfig(num_labels=2)) * BYTES_TO_TRAIN / 2**20
    write_results(results, options.output)


def save_model(folder: Path, layers: int) -> int:
    """Save a model with random weights in bfloat16, and return their number."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForSequenceClassification(config).bfloat16()
    model.save_pretrained(folder)
    generated_tokenizer().save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def train(kind: str, folder: Path) -> float:
    """Train for two steps; return the most MiB that are not pages of files. `lora` saves the teacher of `smat`."""
    start, most = str(folder / "start"), [0.0]

    def watch() -> None:
        while True:
            most[0] = max(most[0], read_memory("RssAnon"))
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    params = {"ivra": {"criteria": f"simulatability?student={start}"}, "smat": {"teacher": str(folder / "lora")}}
    expound.train(
        # SMaT's student starts from the weights below its teacher's adapters.
        start if kind == "smat" else expound.load(start, dtype="bfloat16"), "generated?size=64", kind,
        output_dir=folder / kind, options={"device": "cpu", "lora_rank": RANK}, **params.get(kind, {}),
        args={"max_steps": 2, "per_device_train_batch_size": 4, "eval_strategy": "no", "load_best_model_at_end": False},
    )  # fmt: skip
    return most[0]


def count_adapters(config: LlamaConfig) -> int:
    """Return the number of weights that adapters of a model have."""
    with torch.device("meta"):
        model = get_peft_model(LlamaForSequenceClassification(config), make_config(rank=RANK))
    return sum(weight.numel() for name, weight in model.named_parameters() if "lora_" in name)


if __name__ == "__main__":
    main()
