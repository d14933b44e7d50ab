"""Attribution by asking a language model which words matter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from expound.data.alignment import Alignment
from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import Explainer
from expound.models import Batch, ExplainedModel
from expound.models.loading.adapters import read_config
from expound.models.state import get_lock, preserve_random_state

MARKER = "END"
EXTRA_TOKENS = 80
NUMBER = re.compile(r"^\s*(?:\(?\d+[.):]|[-*•])\s*")
QUESTION = """A classifier read the text below and answered "{label}". Its possible answers are: {labels}.
Rank all the words of the text by how important they are for this answer, the most important word first.
Write the words only, exactly as they stand in the text, separated by commas, and then {marker}.

Text: {text}
Words:"""


@dataclass(frozen=True)
class LlmRanking(Explainer):
    """Rank of each word in a list that an instruction-tuned model makes of the text's words. Unsigned.

    The word at rank i of n adds 1 − i / n (i from 0) to every position whose token is one of the word's tokens. Listed
    words that the text does not contain are dropped; if no word is left, all positions get 1. Decoding is greedy, one
    prompt at a time, so that results do not depend on the batch.

    Args:
        ranker: a causal language model, by folder or hub name; its chat template is used if its tokenizer has one.
    """

    ranker: str = ""
    card: ClassVar = MethodCard(
        name="llm_ranking", label="Ranking by a chat model", family="prompted", cost="words + 80 passes of the ranker",
        unit="rank, the first 1",
        equation=r"s_i = 1 - \text{rank}_i / n",
        use="Use it to learn which words a chat model considers important.",
        avoid="Do not use it to learn what the explained model used: that model is not asked.",
    )  # fmt: skip

    def passes(self, length: int) -> tuple[float, float]:
        """Return no passes: the explained model is not run."""
        return 0.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Ask the ranker about each example and return the ranks at the words' tokens [B, L]."""
        if not self.ranker:
            raise ExpoundError("llm_ranking needs a causal language model: give its folder or name as ranker=")
        if batch.alignments is None:
            raise ExpoundError("llm_ranking reads words: it needs texts, not images or token ids")
        scores = torch.zeros(batch.content.shape, dtype=torch.promote_types(model.dtype, torch.float32))
        for row, alignment in enumerate(batch.alignments):
            label = "" if model.task.reads_context else model.labels[int(target[row])]
            answer = generate_ranking(
                self.ranker, str(model.device), format_prompt(alignment, label, model.labels), len(alignment.words)
            )
            ids = batch.inputs["input_ids"][row].cpu()
            scores[row] = score_ranks(model.tokenizer, parse_ranking(answer), ids, batch.content[row].cpu())
        return scores.to(batch.device)


def format_prompt(alignment: Alignment, label: str, labels: tuple[str, ...]) -> str:
    """Return the prompt for the ranker."""
    # The text is inserted last and without `format`, so that braces in it are plain characters.
    filled = QUESTION.replace("{label}", label).replace("{labels}", ", ".join(labels)).replace("{marker}", MARKER)
    return filled.replace("{text}", "\n".join(alignment.texts))


def parse_ranking(answer: str) -> list[str]:
    """Return the listed words: up to the marker, without list numbers, quotes and duplicates."""
    before = answer.split(MARKER, 1)[0]
    words: dict[str, None] = {}
    for part in re.split(r"[,\n]", before):
        word = NUMBER.sub("", part).strip(" \t\"'`*.,;:")
        if word:
            words[word] = None
    return list(words)


def score_ranks(tokenizer: Any, words: list[str], ids: Tensor, content: Tensor) -> Tensor:
    """Return scores [L] of one example with token `ids` [L] from its ranked words."""
    present = set(ids[content].tolist())
    matched = []
    for word in words:
        own = _word_token_ids(tokenizer, word) & present
        if own:
            matched.append(own)
    scores = torch.zeros(len(ids))
    for rank, own in enumerate(matched):
        scores += torch.isin(ids, torch.tensor(sorted(own))) * (1 - rank / len(matched))
    if not matched:
        scores += 1
    return torch.where(content, scores, 0.0)


def _word_token_ids(tokenizer: Any, word: str) -> set[int]:
    """Return the word's token ids, at the beginning of a text and after a space."""
    # Byte-level tokenizers have another token for a word that follows a space.
    first = tokenizer(word, add_special_tokens=False)["input_ids"]
    return {*first, *tokenizer(f" {word}", add_special_tokens=False)["input_ids"]}


@torch.no_grad()
def generate_ranking(ranker: str, device: str, prompt: str, words: int) -> str:
    """Return the ranker's greedy answer, of at most `words` + 80 tokens.

    Raises:
        ExpoundError: the ranker cannot be loaded.
    """
    model, tokenizer = _load_ranker(ranker, device)
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=not tokenizer.chat_template).to(device)
    with get_lock(model), preserve_random_state():
        output = model.generate(
            **inputs,
            do_sample=False,
            num_beams=1,
            max_new_tokens=words + EXTRA_TOKENS,
            pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        )
    answer: str = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return answer


@lru_cache(maxsize=1)
def _load_ranker(ranker: str, device: str) -> tuple[Any, Any]:
    """Load the ranker and its tokenizer; the last one is cached."""
    try:
        config = read_config(ranker)
        model = AutoModelForCausalLM.from_pretrained(ranker, config=config, dtype="auto", use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(ranker)
    except (OSError, ValueError) as error:
        raise ExpoundError(f"the ranker {ranker!r} could not be loaded: {str(error).splitlines()[0]}") from error
    return model.to(device).eval(), tokenizer
