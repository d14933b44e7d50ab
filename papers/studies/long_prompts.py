#!/usr/bin/env python3
"""Does a search find the sentences that removal of each sentence ranks first, at an eighth of its passes?

Usage: long_prompts.py MODEL SQUAD.json OUT.jsonl COUNT [TOKENS]
       long_prompts.py OUT.jsonl

Prompts of about TOKENS tokens (default 2,000) are made of passages of SQuAD, one of which answers the question at the
end; the response is the right answer. Sentences are removed one at a time; by `search=tree` with an eighth and a
quarter of the passes; and one pass of each of three methods scores them, to say which to remove first. A line per
prompt has the scores of all; a prompt that is in OUT is skipped. With OUT alone, its figures are printed.

What was expected before the run (`best`: the sentence with the largest effect; `top 5`: the set of the five with the
largest effects):
1. Tree search finds the best sentence in fewer than half of the prompts at an eighth of the passes: with about 70
   sentences these are 8 inputs, too few to reach single sentences. The top 5 are found in none.
2. Removal of the sentences that `decompx_linear` ranks first finds the best sentence in at least 90 % of the prompts at
   an eighth of the passes, and the top 5 in fewer than half, since effects beyond the first are small and scattered in
   these prompts, where one passage answers.
3. So no search is equal to exhaustive removal on the top 5 in 95 % of the prompts at an eighth of its passes.
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
from scipy.stats import binomtest

import expound

SEED = 0
SHARES = {"an eighth": 8, "a quarter": 4}
ORDERS = ("decompx_linear", "attn_lrp", "flash_trace")


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


def measure(model: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of sentences by removal of each, by both searches and by one pass, with budgets and seconds."""
    read: list[int] = []

    def count(_: Any, given: tuple[torch.Tensor, ...]) -> None:
        read.append(given[0].numel())

    def score(method: str) -> list[float]:
        item = expound.attribute(model, [row], method, "response", unit="sentence", show_progress=False)[0]
        scores: list[float] = item.scores[0].tolist()
        return scores

    hook, begun = model.embedding.register_forward_pre_hook(count), time.perf_counter()
    try:
        # What the search removes alone has been removed before.
        with model.cache_perturbed():
            every = score("occlusion")
            found: dict[str, Any] = {"all": every, "seconds": time.perf_counter() - begun, "tokens_read": sum(read)}
            for name, part in SHARES.items():
                budget = max(3, (len(every) + 1) // part)
                found[name] = {"budget": budget, "tree": score(f"occlusion?search=tree&budget={budget}")}
    finally:
        hook.remove()
    return found | {method: score(method) for method in ORDERS}


def find_largest(scores: list[float], count: int) -> set[int]:
    """Return the numbers of the units with the largest scores."""
    return set(sorted(range(len(scores)), key=lambda unit: -scores[unit])[:count])


def print_figures(lines: list[dict[str, Any]]) -> None:
    """Print how often the best sentence and the five best are found, with exact 95 % intervals."""
    sizes = [len(line["all"]) for line in lines]
    print(f"{len(lines)} prompts, {min(sizes)} to {max(sizes)} sentences")
    for name in SHARES:
        for method in ("tree", *ORDERS):
            hits: dict[int, int] = {1: 0, 5: 0}
            recall = 0.0
            for line in lines:
                scores, budget = line["all"], line[name]["budget"]
                if method == "tree":
                    scores = line[name]["tree"]
                else:
                    # One input is the whole prompt; the others remove one sentence each.
                    removed = find_largest(line[method], budget - 1)
                    scores = [score if unit in removed else -1e9 for unit, score in enumerate(scores)]
                for most in hits:
                    hits[most] += find_largest(scores, most) == find_largest(line["all"], most)
                recall += len(find_largest(scores, 5) & find_largest(line["all"], 5)) / 5 / len(lines)
            shown = []
            for most, count in hits.items():
                interval = binomtest(count, len(lines)).proportion_ci()
                shown.append(
                    f"top {most} in {count} ({count / len(lines):.0%} [{interval.low:.0%}, {interval.high:.0%}])"
                )
            print(f"{name} of the passes, {method}: {', '.join(shown)}, mean recall of the top 5 {recall:.2f}")


def main() -> None:
    """Measure one prompt after the other, or print the figures of those that were measured."""
    if len(sys.argv) == 2:
        print_figures([json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()])
        return
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
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"number": number, **measure(model, row)}) + "\n")


if __name__ == "__main__":
    main()
