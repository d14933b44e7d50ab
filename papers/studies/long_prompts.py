#!/usr/bin/env python3
"""Does hierarchical removal find the sentences that removal of each sentence ranks first, at an eighth of its passes?

Usage: long_prompts.py MODEL SQUAD.json OUT.jsonl COUNT [TOKENS]

Prompts of about TOKENS tokens (default 2,000) are made of passages of SQuAD, one of which answers the question at the
end; the response is the right answer. Sentences are removed one at a time, and by `search=tree` with an eighth of the
passes. A line per prompt has both rankings, seconds and the tokens that each read; a prompt that is in OUT is skipped.

What was expected before the run: the sentence with the largest effect is the same in at least 95 % of the prompts; the
five with the largest effects are the same in fewer, since effects beyond the first are small and scattered in these
prompts, where one passage answers.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import expound

SEED = 0


def make_rows(path: Path, model: Any, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield prompts whose passages have about this many tokens, in random order, each with the right answer."""
    draw = random.Random(SEED)
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    passages, questions = [], []
    for article in articles:
        for paragraph in article["paragraphs"]:
            passages.append(paragraph["context"])
            answered = [qa for qa in paragraph["qas"] if qa["answers"]]
            questions += [(paragraph["context"], qa["question"], qa["answers"][0]["text"]) for qa in answered]
    while True:
        needed, question, answer = draw.choice(questions)
        chosen, size = [needed], 0
        for other in draw.sample(passages, len(passages)):
            size = len(model.tokenizer("\n\n".join(chosen))["input_ids"])
            if size >= tokens:
                break
            if answer.lower() not in other.lower() and other not in chosen:
                chosen.append(other)
        draw.shuffle(chosen)
        content = "\n\n".join([*chosen, f"{question} Answer in a few words."])
        yield {"messages": [{"role": "user", "content": content}], "response": answer}


def measure(model: Any, row: dict[str, Any], method: str) -> dict[str, Any]:
    """Return the scores of sentences by a method, the seconds, and how many inputs and tokens the model read."""
    read: list[int] = []

    def count(_: Any, given: tuple[torch.Tensor, ...]) -> None:
        read.append(given[0].numel())

    hook, begun = model.embedding.register_forward_pre_hook(count), time.perf_counter()
    try:
        item = expound.attribute(model, [row], method, "response", unit="sentence", show_progress=False)[0]
    finally:
        hook.remove()
    return {"scores": item.scores[0].tolist(), "seconds": time.perf_counter() - begun, "tokens_read": sum(read)}


def main() -> None:
    """Measure one prompt after the other."""
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    out, count = Path(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    # Effects of most sentences are smaller than what bfloat16 rounds.
    model = expound.load(sys.argv[1], task="generation", dtype="float32")
    tokens = int(sys.argv[5]) if len(sys.argv) > 5 else 2000
    done = len(out.read_text(encoding="utf-8").splitlines()) if out.exists() else 0
    for number, row in zip(range(count), make_rows(Path(sys.argv[2]), model, tokens), strict=False):
        if number < done:
            continue
        every = measure(model, row, "occlusion")
        budget = max(8, (len(every["scores"]) + 1) // 8)
        tree = measure(model, row, f"occlusion?search=tree&budget={budget}")
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"number": number, "budget": budget, "all": every, "tree": tree}) + "\n")


if __name__ == "__main__":
    main()
