#!/usr/bin/env python3
"""Two sources support an answer and one is used: does removal tell them apart, where a judge of support cannot?

Usage: used_or_supporting.py MODEL SQUAD.json OUT.json [COUNT]

Questions of SQuAD whose answer has a number. The passage that answers a question is given twice, once with the number
in digits and once in words ("12", "twelve"), among two other passages of the article, in random order. The model's own
greedy answer writes the number in one of the two ways, which says whose wording it took. A judge of support that reads
both ways as the same number finds the answer in both passages. The removal effects are those of the scorer for Inspect.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from make_prompts import read_squad
from sklearn.metrics import roc_auc_score

import expound
from expound.reports.tables.leaderboard import bootstrap_intervals, draw_resamples
from expound.rewards import measure_removal_effects

SEED, TOKENS, N_RESAMPLES = 0, 16, 2000
NUMBER = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?![\w%]|[.,]\d)")
SMALL = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def spell(number: int) -> str:
    """Return a number below a million in words."""
    if number < 20:
        return SMALL.split()[number]
    if number < 100:
        return TENS.split()[number // 10 - 2] + (f"-{SMALL.split()[number % 10]}" if number % 10 else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    return f"{spell(number // size)} {name}" + (f" {spell(number % size)}" if number % size else "")


def spell_numbers(text: str) -> str:
    """Return a text with its whole numbers in words: what the judge of support reads."""
    return NUMBER.sub(lambda match: spell(int(match[0].replace(",", ""))), text)


def make_questions(path: Path) -> list[dict[str, Any]]:
    """Return the questions: their sources in random order, the places of the two, and the number in both ways."""
    draw, questions = random.Random(SEED), []
    for row in read_squad(path, "squad"):
        texts = {source["name"]: source["text"] for source in row["sources"]}
        needed = texts.pop(row["evidence"][0])
        number = next((match[0] for answer in row["answers"] if (match := NUMBER.search(answer))), None)
        if number is None or int(number.replace(",", "")) >= 10**6 or len(NUMBER.findall(needed)) == 0:
            continue
        in_digits, in_words = f"One report: {needed}", f"Another report: {spell_numbers(needed)}"
        word = spell(int(number.replace(",", "")))
        if in_words.count(word) != 1 or len(re.findall(rf"(?<!\d){number}(?!\d)", needed)) != 1:
            continue
        sources = [in_digits, in_words, *list(texts.values())[:2]]
        draw.shuffle(sources)
        question = row["messages"][0]["content"].removeprefix("{sources}\n\n")
        content = "\n\n".join([*(f"[{place}] {text}" for place, text in enumerate(sources, 1)), question])
        places = {"digits": sources.index(in_digits), "words": sources.index(in_words)}
        questions.append({"content": content, "sources": sources, "places": places, "digits": number, "words": word})
    return questions


def main() -> None:
    """Ask, measure and write the figures."""
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    model = expound.load(sys.argv[1], task="generation")
    questions, rows = make_questions(Path(sys.argv[2])), []
    random.Random(SEED).shuffle(questions)
    questions = questions[: int(sys.argv[4]) if len(sys.argv) > 4 else None]
    for question in questions:
        chat = [{"role": "user", "content": question["content"]}]
        (response,) = model.respond([{"messages": chat}], TOKENS, allow_empty=True)
        answer = model.tokenizer.decode(response["response"], skip_special_tokens=True)
        has_digits = re.search(rf"(?<!\d){question['digits']}(?!\d)", answer) is not None
        has_words = question["words"] in answer.lower()
        if has_digits == has_words:
            continue
        used, other = ("digits", "words") if has_digits else ("words", "digits")
        _, effects = measure_removal_effects(model, chat, answer, question["sources"])
        first, second = question["places"][used], question["places"][other]
        is_supporting = [question["words"] in spell_numbers(source).lower() for source in question["sources"]]
        row = {"wording": used, "effect_used": effects[first], "effect_other": effects[second], "answer": answer}
        for name, scores in (("removal", effects), ("judge", [float(each) for each in is_supporting])):
            row[f"{name}_pair"] = roc_auc_score([1, 0], [scores[first], scores[second]])
            for claim, place in (("used", first), ("other", second)):
                row[f"{name}_claim_{claim}"] = roc_auc_score([place == each for each in range(4)], scores)
        rows.append(row)
        print(len(rows), json.dumps(row), flush=True)
    figures: dict[str, Any] = {"questions": len(questions), "n": len(rows), "seed": SEED}
    figures["in_words"] = sum(row["wording"] == "words" for row in rows)
    resamples = draw_resamples(len(rows), N_RESAMPLES, SEED)
    for name in rows[0]:
        if name not in ("wording", "answer"):
            values = np.array([row[name] for row in rows])
            low, high = bootstrap_intervals(values[None, None], resamples)
            figures[name] = [round(float(value), 3) for value in (values.mean(), low[0, 0], high[0, 0])]
    Path(sys.argv[3]).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
