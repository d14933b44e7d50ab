"""A language model that is asked which words matter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from exegete.data.alignment import Alignment
from exegete.data.cards import MethodCard
from exegete.errors import ExegeteError
from exegete.explainers.base import Explainer
from exegete.models import Batch, ExplainedModel
from exegete.models.state.locks import get_lock
from exegete.models.state.restore import preserve_random_state

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
    """Rank of a word in the list that an instruct model makes of the text's words. Unsigned.

    The word at rank i of n adds 1 − i / n (i from 0) to every position whose token is one of the word's own tokens.
    Words of the list that the text does not have are left out; if no word is left, all positions get 1. Decoding is
    greedy, one prompt at a time, so that batching changes nothing.

    Args:
        ranker: a causal language model by folder or hub name; its chat template is used if its tokenizer has one.
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
        """None of the model that is explained."""
        return 0.0, 0.0

    def scores(self, model: ExplainedModel, batch: Batch, target: Tensor) -> Tensor:
        """Asks for each example, and puts the ranks where the words' tokens are."""
        if not self.ranker:
            raise ExegeteError("llm_ranking needs a causal language model: give its folder or name as ranker=")
        if batch.alignments is None:
            raise ExegeteError("llm_ranking reads words: it needs texts, not images or token ids")
        scores = torch.zeros(batch.content.shape, dtype=torch.promote_types(model.dtype, torch.float32))
        for row, alignment in enumerate(batch.alignments):
            label = "" if model.task.name == "span" else model.labels[int(target[row])]
            answer = generate_ranking(
                self.ranker, str(model.device), format_prompt(alignment, label, model.labels), len(alignment.words)
            )
            ids = batch.inputs["input_ids"][row].cpu()
            scores[row] = score_ranks(model.tokenizer, parse_ranking(answer), ids, batch.content[row].cpu())
        return scores.to(batch.device)


def format_prompt(alignment: Alignment, label: str, labels: tuple[str, ...]) -> str:
    """The prompt for the ranker; the texts are put in last, so that their braces are only characters."""
    filled = QUESTION.replace("{label}", label).replace("{labels}", ", ".join(labels)).replace("{marker}", MARKER)
    return filled.replace("{text}", "\n".join(alignment.texts))


def parse_ranking(answer: str) -> list[str]:
    """The words of a list: up to the marker, split at commas and lines, without numbers, quotes and doubles."""
    before = answer.split(MARKER, 1)[0]
    words = (NUMBER.sub("", part).strip(" \t\"'`*.,;:") for part in re.split(r"[,\n]", before))
    return list(dict.fromkeys(word for word in words if word))


def score_ranks(tokenizer: Any, words: list[str], ids: Tensor, content: Tensor) -> Tensor:
    """[L] Scores of one example with token `ids` [L] from its ranked words."""
    present = set(ids[content].tolist())
    tokens = [_word_token_ids(tokenizer, word) & present for word in words]
    matched = [own for own in tokens if own]
    scores = torch.zeros(len(ids))
    for rank, own in enumerate(matched):
        scores += torch.isin(ids, torch.tensor(sorted(own))) * (1 - rank / len(matched))
    return torch.where(content, scores if matched else torch.ones_like(scores), 0.0)


def _word_token_ids(tokenizer: Any, word: str) -> set[int]:
    """The word's token ids at the beginning of a text and after a space."""
    variants = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (word, f" {word}"))
    return {token for ids in variants for token in ids}


@torch.no_grad()
def generate_ranking(ranker: str, device: str, prompt: str, words: int) -> str:
    """The ranker's greedy answer, of at most `words` + 80 tokens.

    Raises:
        ExegeteError: the ranker cannot be loaded.
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
    """The ranker and its tokenizer, kept for the next question."""
    try:
        model = AutoModelForCausalLM.from_pretrained(ranker, dtype="auto", use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(ranker)
    except (OSError, ValueError) as error:
        raise ExegeteError(f"the ranker {ranker!r} could not be loaded: {str(error).splitlines()[0]}") from error
    return model.to(device).eval(), tokenizer
