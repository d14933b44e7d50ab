#!/usr/bin/env python3
"""Does a search find the sentences that removal of each sentence ranks first, and by how many removals?

Usage: long_prompts.py MODEL SQUAD.json OUT.jsonl [SET [PARAGRAPHS [SKIP]]]
       long_prompts.py OUT.jsonl [OUT.jsonl ...]

A set is one prompt of PARAGRAPHS (default 10) passages of SQuAD, four sentences of each, and 12 questions about it with
the right answers: six about one passage, and six that ask for two facts of different passages at once. Sentences have
at most 22 words in 10 paragraphs, and 40 in more; SKIP passages are left for other sets with the same number SET. Each
sentence and each paragraph is removed (its token ids, by transformers alone), with all questions read on the same keys
and values of what is left: most of the cost is that of one question. Sentences are also ranked by a proxy, `cache`:
keys and values of the whole prompt are computed once, and question and answer are read without those of a sentence, so
that what follows the sentence in the prompt still knows it. Every effect is a line of OUT, and effects that are there
are not measured again. With OUT alone, searches of all budgets are simulated from the effects.

Sets 0 and 1 (`0 10` and `1 10`: 40 sentences, 812 and 903 tokens). What was expected before the run (`best`: the
sentence with the largest effect; `top 5`: the set of the five with the largest effects):
1. By an eighth of the removals tree search finds the top 5 of no question, and the best sentence of fewer than half.
2. Paragraphs first (all paragraphs, then all sentences of the strongest) finds the top 5 of 95 % of the questions only
   with more removals than there are sentences, since effects beyond the first ones are small and scattered.
3. The first quarter of the sentences by `cache` contains the best sentence of at least 90 % of the questions, and the
   top 5 of at least half. (It was also expected that `flash_trace` and `decompx_linear` contain fewer: not measured.)
4. So no search equals exhaustive removal on the top 5 in 95 % of the questions by an eighth of its removals.

A set of 2,000 tokens (`2 18`: 72 sentences, 2,221 tokens; an eighth are 9 removals), in float32: of three removals in
set 0, effects in bfloat16 differed from those in float32 by .14, which is more than the fifth and the sixth effect do.
The cost was 14 minutes of a shared processor, without paragraphs, so that another set (`2 18 18`) was not measured.
What was expected before the run:
5. By 9 removals `tree` finds the top 5 of no question and the best sentence of fewer than half; `cache` finds the best
   of at least 5 in 6, the top 5 of at most 1 in 12, and of the five half on average (.37 in sets 0 and 1 by an eighth).
6. But of the sum of the five effects `cache` finds at least 80 %: what it misses is small. `tree` finds at most 60 %.
7. The top 5 is not found because the fifth effect exceeds the sixth by less than the proxy errs: in most questions the
   gap is below a tenth of the standard deviation of what remains of the effects after a regression on `cache`.
8. A third design, `corrected`: `cache` chooses half of the budget; then all effects measured so far are regressed on
   `cache` and the place in the prompt, and the regression chooses the rest. It finds no more of the five than `cache`
   alone (mean shares differ by less than .05).
9. In float32 `cache` is closer to removal than in bfloat16: the mean rank correlation rises from .28 to .4 or more.
What was found, for 12 questions:
5. As expected: `tree` finds the best of 5; `cache` the best of 12, the top 5 of none, and .45 of the five.
6. As expected: .92 and .60.
7. Not as expected: the gap is below a tenth for 5 questions, and its median is .16. But an order whose first 9 have the
   top 5 of 95 % of the questions may err by .04, which is .09 of what remains after the regression (.45).
8. At the limit: .05 more, with an interval of [0, .10].
9. Not as expected: the mean rank correlation is .23.
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest, spearmanr
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from expound.explainers.perturbation.tree_search import search_tree

QUESTIONS, SENTENCES, ANSWER_WORDS = 12, 4, 6
SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
Lines = list[dict[str, Any]]


def make_set(path: Path, seed: int, count: int, skip: int) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Return paragraphs of four sentences, and questions about one and about two of them with the right answers."""
    draw, most_words = random.Random(seed), 22 if count <= 10 else 40
    windows = []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for passage in article["paragraphs"]:
            sentences = re.split(r"(?<=[.!?])\s+", passage["context"])
            for start in range(len(sentences) - SENTENCES + 1):
                window = sentences[start : start + SENTENCES]
                if all(3 <= len(sentence.split()) <= most_words for sentence in window):
                    windows.append((passage["context"], window, find_answers(passage, window)))
    draw.shuffle(windows)
    chosen: list[Any] = []
    for context, window, answers in windows:
        if len(chosen) < skip + count and answers and all(context != other[0] for other in chosen):
            chosen.append((context, window, answers))
    chosen = chosen[skip:]
    single = [(place, *draw.choice(answers)) for place, (_, _, answers) in enumerate(chosen)]
    draw.shuffle(single)
    questions = [(f"{question} Answer in a few words.", answer) for _, question, answer in single[: QUESTIONS // 2]]
    for number in range(QUESTIONS // 2):
        one, other = single[number % len(single)], single[(number + 1 + number // len(single)) % len(single)]
        questions.append((f"{one[1]} {other[1]} Answer both in a few words.", f"{one[2]}; {other[2]}"))
    return [window for _, window, _ in chosen], questions


def find_answers(passage: dict[str, Any], window: Sequence[str]) -> list[tuple[str, str]]:
    """Return the questions about a passage whose short answer is in exactly one sentence of a window."""
    found = []
    for qa in passage["qas"]:
        texts = [answer["text"] for answer in qa["answers"]]
        if texts and len(texts[0].split()) <= ANSWER_WORDS and sum(texts[0] in each for each in window) == 1:
            found.append((qa["question"].strip(), texts[0]))
    return found


class Prompt:
    """Token ids of a prompt with the sentence of each, and the ids of its questions with their answers."""

    def __init__(self, model: Any, tokenizer: Any, paragraphs: Sequence[Sequence[str]], questions: Any) -> None:
        self.model, self.head = model, model.lm_head.weight
        text = "\n\n".join(" ".join(sentences) for sentences in paragraphs) + "\n\n"
        before, after = tokenizer.apply_chat_template(
            [{"role": "user", "content": "\ue000"}], tokenize=False, add_generation_prompt=True
        ).split("\ue000")
        encoded = tokenizer(before + text, return_offsets_mapping=True, add_special_tokens=False)
        starts, place = list[int](), len(before)
        self.parents = list[int]()
        for number, sentences in enumerate(paragraphs):
            for sentence in sentences:
                starts.append(place)
                self.parents.append(number)
                place += len(sentence) + 1
            place += 1
        self.ids = torch.tensor(encoded["input_ids"])
        # A token with the space before a sentence belongs to the sentence, as its last character does.
        owners = [sum(start < end for start in starts) - 1 for _, end in encoded["offset_mapping"]]
        self.unit = torch.tensor([owner if end <= place - 2 else -1 for owner, (_, end) in
                                  zip(owners, encoded["offset_mapping"], strict=True)])  # fmt: skip
        self.rows, self.answers = list[list[int]](), list[int]()
        for question, answer in questions:
            asked = tokenizer(question + after, add_special_tokens=False)["input_ids"]
            given = tokenizer(answer, add_special_tokens=False)["input_ids"]
            self.rows.append(asked + given)
            self.answers.append(len(given))
        self.cache = self.read(DynamicCache(), self.ids)
        self.full = self.ask(self.cache, len(self.ids))

    def read(self, cache: DynamicCache, ids: torch.Tensor) -> DynamicCache:
        """Return a cache after it has read more tokens."""
        if len(ids):
            self.model.model(ids[None], past_key_values=cache, use_cache=True)
        return cache

    def ask(self, cache: DynamicCache, position: int) -> torch.Tensor:
        """Return the log-probability of each answer after its question, whose first token has this position."""
        cache, past = copy.deepcopy(cache), cache.get_seq_length()
        # All questions are one input, in which each sees the prompt and itself: copies of the cache would take GiB.
        lengths = torch.tensor([len(row) for row in self.rows])
        owner = torch.arange(len(self.rows)).repeat_interleave(lengths)
        seen = torch.ones(len(owner), past + len(owner), dtype=torch.bool)
        seen[:, past:] = (owner[:, None] == owner).tril()
        mask = torch.zeros(seen.shape, dtype=self.model.dtype).masked_fill(~seen, torch.finfo(self.model.dtype).min)
        places = position + torch.cat([torch.arange(len(row)) for row in self.rows])
        hidden = self.model.model(
            torch.tensor([[*chain(*self.rows)]]), attention_mask=mask[None, None], past_key_values=cache,
            position_ids=places[None], use_cache=True,
        ).last_hidden_state[0]  # fmt: skip
        found = []
        for row, count, end in zip(self.rows, self.answers, lengths.cumsum(0).tolist(), strict=True):
            logits = (hidden[end - count - 1 : end - 1] @ self.head.T).log_softmax(-1)
            found.append(logits.gather(1, torch.tensor(row[-count:])[:, None]).sum())
        return torch.stack(found)

    def remove(self, start: int, stop: int) -> torch.Tensor:
        """Return how much the answers' log-probabilities fall without the sentences [start, stop)."""
        keep = (self.unit < start) | (self.unit >= stop)
        first = int((~keep).nonzero()[0])
        cache = self.keep(torch.arange(first))
        kept = self.ids[first:][keep[first:]]
        return self.full - self.ask(self.read(cache, kept), int(keep.sum()))

    def hide(self, unit: int) -> torch.Tensor:
        """Return how much the answers' log-probabilities fall if questions and answers do not see a sentence."""
        keep = self.unit != unit
        return self.full - self.ask(self.keep(keep.nonzero()[:, 0]), len(self.ids))

    def keep(self, places: torch.Tensor) -> DynamicCache:
        """Return the keys and values of the prompt's tokens at these places."""
        cache = copy.deepcopy(self.cache)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, places], layer.values[:, :, places]
        return cache


def measure(folder: str, data: Path, out: Path, seed: int, count: int, skip: int) -> None:
    """Append the effects that are not in `out` yet: of sentences, of paragraphs, and by proxies."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    paragraphs, questions = make_set(data, seed, count, skip)
    done = {json.dumps(line["key"]) for line in read_lines(out)}

    def write(key: list[Any], values: Any) -> None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "values": values, "seconds": time.process_time()}) + "\n")

    with torch.inference_mode():
        prompt = Prompt(model, tokenizer, paragraphs, questions)
        units = len(prompt.parents)
        if '["prompt"]' not in done:
            answers = [[question, answer] for question, answer in questions]
            about = {"parents": prompt.parents, "tokens": len(prompt.ids), "questions": answers}
            write(["prompt"], about | {"full": prompt.full.tolist()})
        keys = list[list[Any]]()
        # In random order, what is not finished is a random sample of the sentences.
        for unit in random.Random(seed).sample(range(units), units):
            keys += [["cache", unit], ["remove", unit, unit + 1]]
        keys += [["remove", start, start + SENTENCES] for start in range(0, units, SENTENCES)]
        for key in keys:
            if json.dumps(key) not in done:
                write(key, (prompt.hide if key[0] == "cache" else prompt.remove)(*key[1:]).tolist())


def read_lines(path: Path) -> Lines:
    """Return the lines of a file, none if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def find_largest(scores: Sequence[float], count: int) -> set[int]:
    """Return the numbers of the units with the largest scores."""
    return set(sorted(range(len(scores)), key=lambda unit: -scores[unit])[:count])


def order_by_paragraph(paragraphs: Sequence[float], removals: int) -> list[int]:
    """Return the sentences of the paragraphs with the largest effects, which were removed first, within the budget."""
    left, chosen = removals - len(paragraphs), list[int]()
    for paragraph in sorted(range(len(paragraphs)), key=lambda number: -paragraphs[number]):
        chosen += range(paragraph * SENTENCES, (paragraph + 1) * SENTENCES)
    return chosen[: max(0, left)]


def choose_by_regression(hidden: Sequence[float], alone: Sequence[float], removals: int) -> set[int]:
    """Return the sentences to remove: half by the cache, the others by what effects of these say of cache and place."""
    first = find_largest(hidden, removals // 2)
    inputs = np.stack([np.ones(len(hidden)), hidden, np.arange(len(hidden))], 1)
    weights = np.linalg.lstsq(inputs[[*first]], np.array(alone)[[*first]], rcond=None)[0]
    guessed = [-np.inf if unit in first else value for unit, value in enumerate(inputs @ weights)]
    return first | find_largest(guessed, removals - len(first))


def simulate(path: Path) -> Iterator[tuple[list[float], list[float], dict[tuple[str, float], list[float]]]]:
    """Yield the effects of all sentences on each question of a set, by removal and in the cache, and searches' scores.

    A search by a share of the removals gives a sentence without a score -1e9. In a set that is not finished the
    sentences are those that were removed, and the effect of a paragraph is the sum of theirs.
    """
    effects = {tuple(line["key"]): line["values"] for line in read_lines(path)}
    parents = effects["prompt",]["parents"]
    units = [unit for unit in range(len(parents)) if ("remove", unit, unit + 1) in effects]
    has_paragraphs = ("remove", len(parents) - SENTENCES, len(parents)) in effects
    for question in range(QUESTIONS):
        alone = [effects["remove", unit, unit + 1][question] for unit in units]
        hidden = [effects["cache", unit][question] for unit in units]
        paragraphs = [sum(alone[unit : unit + SENTENCES]) for unit in range(0, len(units), SENTENCES)]
        if has_paragraphs:
            paragraphs = [effects["remove", unit, unit + SENTENCES][question] for unit in units[::SENTENCES]]

        def remove(groups: Sequence[range], alone: Any = alone, paragraphs: Any = paragraphs) -> torch.Tensor:
            # Effects of several paragraphs, or of a part of one, are taken as sums.
            found = []
            for group in groups:
                if has_paragraphs and len(group) % SENTENCES == 0:
                    found.append(sum(paragraphs[group.start // SENTENCES : group.stop // SENTENCES]))
                else:
                    found.append(sum(alone[group.start : group.stop]))
            return torch.tensor([found], dtype=torch.float64)

        searches = {}
        for share in SHARES:
            removals = max(2, int(share * len(units)))
            searches["tree", share] = search_tree(remove, [parents[unit] for unit in units], removals)[0].tolist()
            orders = {
                "paragraphs": order_by_paragraph(paragraphs, removals) if has_paragraphs else [],
                "cache": find_largest(hidden, removals),
                "corrected": choose_by_regression(hidden, alone, removals),
            }
            for name, order in orders.items():
                searches[name, share] = [effect if unit in order else -1e9 for unit, effect in enumerate(alone)]
        yield alone, hidden, searches


def find_tolerance(questions: Sequence[Sequence[float]], removals: int) -> float:
    """Return the standard deviation of errors with which a proxy's first sentences have the top 5 in 95 % of draws."""
    draws = np.random.default_rng(0)
    for error in np.geomspace(1, 0.001, 61):
        hits = list[bool]()
        for alone in questions:
            best = find_largest(alone, 5)
            for _ in range(50):
                guessed = alone + error * draws.standard_normal(len(alone))
                hits.append(best <= find_largest(guessed.tolist(), removals))
        if np.mean(hits) >= 0.95:
            return float(error)
    return 0.0


def print_figures(paths: Sequence[Path]) -> None:
    """Print how often searches find the best sentence, all strong ones and the five best, and why not more often."""
    found: dict[tuple[str, float], list[list[float]]] = {}
    gaps, correlations, needed = list[float](), list[float](), list[float]()
    questions = [*chain(*map(simulate, paths))]
    for alone, hidden, searches in questions:
        best = find_largest(alone, 5)
        total = sum(max(0.0, alone[unit]) for unit in best)
        for key, scores in searches.items():
            # The number of sentences with an effect of a tenth of the largest one at least.
            strong = sum(effect >= max(alone) / 10 for effect in alone)
            row = list[float]()
            for count in (1, strong, 5):
                # Units that were not removed have no score.
                given = {unit for unit in find_largest(scores, count) if scores[unit] > -1e8}
                row.append(given == find_largest(alone, count))
            row += [len(given & best) / 5, sum(max(0.0, alone[unit]) for unit in given) / total if total else np.nan]
            found.setdefault(key, []).append(row)
        fifth, sixth = sorted(alone, reverse=True)[4:6]
        slope, intercept = np.polyfit(hidden, alone, 1)
        gaps.append((fifth - sixth) / float(np.std(np.array(alone) - slope * np.array(hidden) - intercept)))
        correlations.append(float(spearmanr(hidden, alone).statistic))
        needed.append(max(sorted(hidden, reverse=True).index(hidden[unit]) + 1 for unit in best) / len(alone))
    for (name, share), rows in found.items():
        shown = [f"{name}, {share:.3f} of the removals, {len(rows)} questions:"]
        for place, title in enumerate(("best", "strong", "top 5")):
            count = sum(int(row[place]) for row in rows)
            interval = binomtest(count, len(rows)).proportion_ci()
            shown.append(f"{title} {count} [{interval.low:.0%}, {interval.high:.0%}],")
        for place, title in ((3, "mean share of the five"), (4, "of their effects")):
            values = np.array([row[place] for row in rows if not np.isnan(row[place])])
            # The interval is that of resampled questions. Some have no sentence whose removal costs the answer.
            means = np.random.default_rng(0).choice(values, (2000, len(values))).mean(1)
            low, high = np.quantile(means, [0.025, 0.975])
            shown.append(f"{title} {values.mean():.2f} [{low:.2f}, {high:.2f}]")
        print(*shown)
    print(f"fifth effect above the sixth, in standard deviations of what `cache` leaves: median {np.median(gaps):.3f};")
    print(f"  below a tenth for {sum(gap < 0.1 for gap in gaps)} of {len(gaps)} questions")
    print(f"rank correlation of cache and removal: mean {np.mean(correlations):.2f}")
    print("share of the removals until `cache` has the top 5: " + ", ".join(f"{each:.2f}" for each in sorted(needed)))

    effects = [alone for alone, _, _ in questions]
    for removals in sorted({5, *(len(effects[0]) // part for part in (8, 4, 2))}):
        error = find_tolerance(effects, removals)
        print(f"standard deviation of errors with which the first {removals} have the top 5 in 95 %: {error:.4f}")
    rest = np.sqrt(np.mean([np.var(sorted(alone)[:-5]) for alone in effects]))
    print(f"standard deviation of the effects behind the top 5: {rest:.3f}")


def main() -> None:
    """Measure a set, or print the figures of those that were measured."""
    if len(sys.argv) > 1 and sys.argv[1].endswith(".jsonl"):
        print_figures([Path(name) for name in sys.argv[1:]])
        return
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    numbers = [*map(int, sys.argv[4:7])]
    measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *numbers, *(0, 10, 0)[len(numbers) :])


if __name__ == "__main__":
    main()
