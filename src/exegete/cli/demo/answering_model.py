"""A small language model that learns from nothing to answer questions on the generated notes, in minutes of one core.

A model learns to find its answers in the notes once it has an induction head: a layer that tells each token what stood
before it, and one that looks the last token up there. Questions alone do not lead to it for a long time, so the first
three fifths of the steps are reciting: words by chance, and the same again in pieces of another order. A head of Llama
can look one token back, whatever stands there, by biases of queries and keys that are drawn and not zero, and a low
rotary base; one of GPT-2, which needs a third layer and half as many steps again, by positions that begin as waves.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import IterableDataset
from transformers import (
    DataCollatorForSeq2Seq,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from exegete.data.atomic_files import atomic_folder
from exegete.data.generated.retrieval import generate_lessons, get_vocabulary
from exegete.data.generated.tokenizer import generated_tokenizer
from exegete.data.provenance import write_json
from exegete.errors import ExegeteError, unknown
from exegete.models import load
from exegete.models.state import preserve_random_state
from exegete.training.loop.execute import StopAfterStep, TrainResult
from exegete.training.loop.run import find_newest_checkpoint

Architecture = Literal["llama", "gpt2"]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
STEPS, RECITED, BATCH = 2000, 1200, 48
SHORTEST, LONGEST, CUT = 6, 30, 0.25
"""Words that are recited, and the chance that a piece ends behind one."""
IGNORED = -100
LONGEST_TEXT = 512


def train_answering_model(
    output_dir: str | Path,
    *,
    architecture: Architecture = "llama",
    seed: int = 0,
    device: str | None = None,
    scale: float = 1.0,
    show_progress: bool = False,
) -> TrainResult:
    """Trains the model, with a loss on what is recited and answered alone; it lies in `model` of the folder.

    A stopped or killed training goes on where it was; a finished one is taken as it is.

    Args:
        output_dir: the folder.
        architecture: "llama" or "gpt2".
        seed: of weights and lessons.
        device: cpu or cuda; default: a GPU if there is one.
        scale: of the number of steps; below 1 the answers will not be right.
        show_progress: whether to show the Trainer's bar.

    Raises:
        ExegeteError: the folder holds a training of another architecture, seed or scale; or an unknown architecture.
    """
    if architecture not in UNTRAINED:
        raise unknown("architecture", architecture, UNTRAINED)
    untrained_model, scale = UNTRAINED[architecture], scale * LONGER.get(architecture, 1.0)
    folder, stop = Path(output_dir), StopAfterStep()
    whole, tokenizer = folder / "model", generated_tokenizer(get_vocabulary())
    steps, recited = (max(1, round(scale * each)) for each in (STEPS, RECITED))
    named = {} if architecture == "llama" else {"architecture": architecture}
    _require_same(folder / "settings.json", {"seed": seed, "steps": steps, "recited": recited} | named)
    if whole.exists():
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return TrainResult(whole, load(whole, device=device, task="generation"), {}, reused=True)
    arguments = _arguments(folder / "checkpoints", steps, seed, device, show_progress)
    with preserve_random_state():
        torch.manual_seed(seed)
        trainer = Trainer(
            untrained_model(tokenizer),
            arguments,
            DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
            Taught(tokenizer, seed, recited * BATCH),
            processing_class=tokenizer,
            callbacks=[stop],
        )
        if not show_progress:
            trainer.remove_callback(PrinterCallback)
        last = find_newest_checkpoint(folder / "checkpoints")
        with stop.listening():
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
    done, finished = trainer.state.global_step, trainer.state.global_step >= steps
    if finished:
        with atomic_folder(whole) as fresh:
            trainer.save_model(str(fresh))
        shutil.rmtree(folder / "checkpoints")
    model = load(trainer.model.eval(), tokenizer, task="generation")
    return TrainResult(whole, model, {}, done, finished=finished, signal=stop.signal)


def _arguments(checkpoints: Path, steps: int, seed: int, device: str | None, show: bool) -> TrainingArguments:
    return TrainingArguments(
        str(checkpoints),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=3e-3,
        adam_beta2=0.98,
        weight_decay=0.01,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": steps // 3},
        warmup_steps=steps // 40,
        save_steps=max(1, steps // 10),
        save_total_limit=2,
        logging_steps=100,
        report_to="none",
        seed=seed,
        use_cpu=device == "cpu",
        disable_tqdm=not show,
        dataloader_pin_memory=False,
    )


def _require_same(path: Path, settings: dict[str, Any]) -> None:
    if not path.exists():
        write_json(path, settings)
    elif json.loads(path.read_text(encoding="utf-8")) != settings:
        raise ExegeteError(f"{path.parent} holds another training (see {path.name}): choose another folder")


def untrained(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Llama before training: stock layers, with biases of queries and keys that are drawn."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=LONGEST_TEXT,
        tie_word_embeddings=True,
        initializer_range=0.05,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES,
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            torch.nn.init.normal_(part.bias, 0.0, 0.8)
    return model


def untrained_gpt2(tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """GPT-2 before training: stock layers, with positions that begin as sine waves."""
    width = SIZES["hidden_size"]
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=LONGEST_TEXT,
        n_embd=width,
        n_inner=SIZES["intermediate_size"],
        n_layer=1 + SIZES["num_hidden_layers"],
        n_head=SIZES["num_attention_heads"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.05,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = GPT2LMHeadModel(config)
    turned = torch.arange(LONGEST_TEXT)[:, None] * 1000.0 ** (-torch.arange(0, width, 2) / width)
    waves = torch.stack([turned.sin(), turned.cos()], -1).flatten(1)
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(0.15 * waves)
    return model


UNTRAINED: dict[str, Callable[[PreTrainedTokenizerFast], PreTrainedModel]] = {
    "llama": untrained,
    "gpt2": untrained_gpt2,
}
LONGER = {"gpt2": 1.5}
"""Times as many steps as Llama's."""


class Taught(IterableDataset[dict[str, list[int]]]):
    """Ids and labels without end: first so many examples of reciting, then notes with questions and their answers."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, recited: int) -> None:
        self.tokenizer, self.seed, self.recited = tokenizer, seed, recited

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        yield from islice(self._recitals(), self.recited)
        yield from self._lessons()

    def _recitals(self) -> Iterator[dict[str, list[int]]]:
        """Words by chance, none twice, and the same again in pieces of another order; a piece's first is not judged."""
        words = torch.tensor(self.tokenizer.convert_tokens_to_ids(get_vocabulary()))
        chance = torch.Generator().manual_seed(self.seed)
        while True:
            count = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=chance))
            said = words[torch.randperm(len(words), generator=chance)[:count]]
            piece = (torch.rand(count, generator=chance) < CUT).cumsum(0)
            order = torch.rand(count + 1, generator=chance)[piece].argsort(stable=True)
            begins = piece[order].diff(prepend=piece.new_tensor([-1])) != 0
            again = said[order]
            labels = again.masked_fill(begins, IGNORED)
            yield {"input_ids": [*said.tolist(), *again.tolist()], "labels": [IGNORED] * count + labels.tolist()}

    def _lessons(self) -> Iterator[dict[str, list[int]]]:
        def ids(text: str) -> list[int]:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

        for notes, questions in generate_lessons(seed=self.seed):
            read: list[Any] = [self.tokenizer.cls_token_id, *ids(notes)]
            labels = [IGNORED] * len(read)
            for question, answer in questions:
                asked, said = ids(question), [*ids(answer), self.tokenizer.sep_token_id]
                read += asked + said
                labels += [IGNORED] * len(asked) + said
            yield {"input_ids": read, "labels": labels}
