"""A small language model for the demo, trained from scratch in minutes on one core to answer questions on notes.

To find an answer in the notes a model needs an induction head: one layer tells each token which token is before it,
and another looks up the last token there. Questions alone do not lead to such a head for a long time, so the first
three fifths of the steps are recitations: random words, then the same words in pieces of another order.
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

from expound.data.atomic_files import atomic_folder
from expound.data.generated.retrieval import generate_lessons, get_vocabulary
from expound.data.generated.tokenizer import generated_tokenizer
from expound.data.provenance import write_json
from expound.errors import ExpoundError, check_choice
from expound.models import load
from expound.models.state import preserve_random_state
from expound.training.loop.callbacks import StopAfterStep
from expound.training.loop.run import find_newest_checkpoint
from expound.training.loop.trainer import TrainResult

Architecture = Literal["llama", "gpt2"]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
STEPS, RECITED, BATCH = 2000, 1200, 48
SHORTEST, LONGEST, CUT = 6, 30, 0.25
"""Minimum and maximum number of recited words, and the probability that a piece ends after a word."""
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
    """Train the model into the subfolder `model`; an interrupted training is resumed, a finished one is reused.

    Args:
        output_dir: the folder of the training.
        architecture: "llama" or "gpt2".
        seed: seed of the weights and of the examples.
        device: cpu or cuda. Default: the GPU if available.
        scale: factor of the number of steps; below 1 many answers will be wrong.
        show_progress: whether to show the Trainer's progress bar.

    Raises:
        ExpoundError: an unknown architecture, or the folder holds a training with other settings.
    """
    check_choice("architecture", architecture, MODELS)
    make_model, scale = MODELS[architecture], scale * STEPS_FACTOR.get(architecture, 1.0)
    folder, stop = Path(output_dir), StopAfterStep()
    whole, tokenizer = folder / "model", generated_tokenizer(get_vocabulary())
    steps, recited = max(1, round(scale * STEPS)), max(1, round(scale * RECITED))
    settings: dict[str, Any] = {"seed": seed, "steps": steps, "recited": recited}
    if architecture != "llama":
        settings["architecture"] = architecture
    path = folder / "settings.json"
    if not path.exists():
        write_json(path, settings)
    elif json.loads(path.read_text(encoding="utf-8")) != settings:
        raise ExpoundError(f"{folder} holds another training (see {path.name}): choose another folder")
    if whole.exists():
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return TrainResult(whole, load(whole, device=device, task="generation"), {}, reused=True)
    arguments = _arguments(folder / "checkpoints", steps, seed, device, show_progress)
    with preserve_random_state():
        torch.manual_seed(seed)
        trainer = Trainer(
            make_model(tokenizer),
            arguments,
            DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
            AnsweringExamples(tokenizer, seed, recited * BATCH),
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


def make_llama(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return an untrained Llama with random biases of queries and keys."""
    # With these biases and a low rotary base a head can attend to the previous position whatever token is there.
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


def make_gpt2(tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """Return an untrained GPT-2 whose position embeddings start as sine waves."""
    # GPT-2 has no rotary positions: waves let a head attend to the previous position from the start. It also needs a
    # third layer and half as many steps again.
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


MODELS: dict[str, Callable[[PreTrainedTokenizerFast], PreTrainedModel]] = {"llama": make_llama, "gpt2": make_gpt2}
STEPS_FACTOR = {"gpt2": 1.5}
"""Factor of the number of steps, relative to Llama."""


class AnsweringExamples(IterableDataset[dict[str, list[int]]]):
    """An endless stream of token ids and labels: first `recited` recitations, then notes with questions and answers."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, recited: int) -> None:
        self.tokenizer, self.seed, self.recited = tokenizer, seed, recited

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        yield from islice(self._recitals(), self.recited)
        yield from self._lessons()

    def _recitals(self) -> Iterator[dict[str, list[int]]]:
        """Yield random distinct words, followed by the same words in pieces of another order."""
        words = torch.tensor(self.tokenizer.convert_tokens_to_ids(get_vocabulary()))
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            count = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=generator))
            recited = words[torch.randperm(len(words), generator=generator)[:count]]
            piece = (torch.rand(count, generator=generator) < CUT).cumsum(0)
            order = torch.rand(count + 1, generator=generator)[piece].argsort(stable=True)
            # Nothing tells where the next piece begins: its first word has no label.
            begins = piece[order].diff(prepend=piece.new_tensor([-1])) != 0
            repeated = recited[order]
            labels = repeated.masked_fill(begins, IGNORED)
            yield {"input_ids": [*recited.tolist(), *repeated.tolist()], "labels": [IGNORED] * count + labels.tolist()}

    def _lessons(self) -> Iterator[dict[str, list[int]]]:
        """Yield notes with several questions and answers; only answers are in the loss."""

        def ids(text: str) -> list[int]:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

        for notes, questions in generate_lessons(seed=self.seed):
            input_ids: list[Any] = [self.tokenizer.cls_token_id, *ids(notes)]
            labels = [IGNORED] * len(input_ids)
            for question, answer in questions:
                question_ids, answer_ids = ids(question), [*ids(answer), self.tokenizer.sep_token_id]
                input_ids += question_ids + answer_ids
                labels += [IGNORED] * len(question_ids) + answer_ids
            yield {"input_ids": input_ids, "labels": labels}
