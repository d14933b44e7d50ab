#!/usr/bin/env python3
r"""Write prompts with sources that a language model answers right, as JSON Lines for the study language-models.

Usage: make_prompts.py MODEL OUT.jsonl squad|squad-two|squad-yes-no|strategyqa FILE [COUNT]

squad: questions on four passages of one SQuAD article; one of them has the answer. strategyqa: yes or no questions
with the facts that their answer needs (two or more) among four facts of other questions. Questions are asked in random
order until COUNT answers are right (default 150), without sampling; a response ends with the right answer. OUT.json
says how many were asked.

A model without a chat template completes "Question: …\nAnswer:" after the passages.

squad-two: two questions at once, each with its own passage, among four passages. squad-yes-no: whether an answer, right
or wrong, is the answer. Small models answer these wrong (SmolLM2-135M 61 of 64 and 94 of 96), so that the right
response is given, and not the model's.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import expound
from expound.data.alignment import split_sentences

SEED = 0
WORDS = 25
TOKENS = 16
AT_ONCE = 16
QUESTIONS = {
    "squad": "Answer in a few words.",
    "squad-two": "Answer both questions in a few words.",
    "squad-yes-no": "Answer with yes or no.",
    "strategyqa": "Answer with yes or no.",
}


def read_squad(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield each answerable question with the passage of its answer and others of the same article, four in all."""
    draw = random.Random(SEED)
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        paragraphs = [paragraph["context"] for paragraph in article["paragraphs"]]
        questions = _list_questions(article)
        for number, (question, needed, answers) in enumerate(questions):
            if kind == "squad":
                others = _draw_others(paragraphs, [needed], answers, draw)
                yield _make_row(question, [needed], others, answers, kind, draw)
            elif kind == "squad-two":
                second = next((each for each in questions[number + 1 :] if each[1] != needed), None)
                if second is not None:
                    others = _draw_others(paragraphs, [needed, second[1]], answers + second[2], draw)
                    row = _make_row(f"{question} {second[0]}", [needed, second[1]], others, answers, kind, draw)
                    yield row | {"response": f"{answers[0]}, {second[2][0]}"}
            else:
                wrong = draw.choice(draw.choice(questions)[2])
                is_right = draw.random() < 0.5 or wrong in answers
                others = _draw_others(paragraphs, [needed], answers, draw)
                asks = f'{question} Is the answer "{answers[0] if is_right else wrong}"?'
                yield _make_row(asks, [needed], others, answers, kind, draw) | {"response": "Yes" if is_right else "No"}


def _list_questions(article: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Return the answerable questions of an article, each with the passage of its answer and its answers."""
    found = []
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            answers = sorted({answer["text"] for answer in question["answers"]})
            if answers:
                needed = _find_passage(paragraph["context"], question["answers"][0]["answer_start"])
                found.append((question["question"], needed, answers))
    return found


def _draw_others(paragraphs: list[str], needed: list[str], answers: list[str], draw: random.Random) -> list[str]:
    """Return passages without an answer, of paragraphs without a needed passage; four together with these."""
    pool = []
    for text in paragraphs:
        if not any(passage in text for passage in needed):
            for passage in _split_passages(text):
                if not any(_has_words(passage, answer) for answer in answers):
                    pool.append(passage)
    return draw.sample(pool, 4 - len(needed))


def read_strategyqa(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each question that needs two facts or more, with these and four facts of other questions."""
    draw = random.Random(SEED)
    records = json.loads(path.read_text(encoding="utf-8"))
    for record in records:
        if len(record["facts"]) >= 2:
            others = [draw.choice(other["facts"]) for other in draw.sample(records, 12) if other is not record]
            others = [fact for fact in dict.fromkeys(others) if fact not in record["facts"]][:4]
            answer = "yes" if record["answer"] else "no"
            yield _make_row(record["question"], record["facts"], others, [answer], "strategyqa", draw)


def _make_row(
    question: str, needed: list[str], others: list[str], answers: list[str], kind: str, draw: random.Random
) -> dict[str, Any]:
    texts = [*needed, *others]
    draw.shuffle(texts)
    sources = [{"name": f"passage {number}", "text": text} for number, text in enumerate(texts, 1)]
    content = f"{{sources}}\n\n{question} {QUESTIONS[kind]}"
    evidence = [source["name"] for source in sources if source["text"] in needed]
    row = {"messages": [{"role": "user", "content": content}], "sources": sources, "evidence": evidence, "kind": kind}
    return row | {"answers": answers}


def _make_completion(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose prompt a model without a chat template completes by the answer."""
    question = row["messages"][0]["content"].removeprefix("{sources}\n\n").removesuffix(QUESTIONS[row["kind"]]).strip()
    prompt = f"{{sources}}\n\nQuestion: {question}\nAnswer:"
    return {name: value for name, value in row.items() if name != "messages"} | {"prompt": prompt}


def _split_passages(text: str) -> list[str]:
    """Divide a paragraph into passages of whole sentences with at most `WORDS` words, unless one sentence has more."""
    passages: list[str] = []
    for sentence in split_sentences(text):
        if passages and len(f"{passages[-1]} {sentence.text}".split()) <= WORDS:
            passages[-1] += f" {sentence.text}"
        else:
            passages.append(sentence.text)
    return passages


def _find_passage(text: str, start: int) -> str:
    """Return the passage that has the character `start` of the paragraph."""
    end = 0
    for passage in _split_passages(text):
        end = text.index(passage[-20:], end + max(len(passage) - 40, 0)) + len(passage[-20:])
        if start < end:
            return passage
    raise ValueError(f"no passage has character {start} of a text of {len(text)}")


def _normalise(text: str) -> str:
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", re.sub(r"[^\w\s]", " ", text.lower())).split())


def _has_words(text: str, answer: str) -> bool:
    """Return whether a text has the words of an answer, without articles and punctuation."""
    return f" {_normalise(answer)} " in f" {_normalise(text)} "


def _cut_answer(text: str, row: dict[str, Any]) -> str | None:
    """Return the response up to the end of a right answer; None for a response without one."""
    if row["kind"] == "strategyqa":
        word = re.match(r"\s*\w+", text)
        return word[0] if word and _normalise(word[0]) in row["answers"] else None
    for end in range(len(text) + 1):
        if re.match(r"\w", text[end : end + 1]) is None and any(
            _has_words(text[:end], each) for each in row["answers"]
        ):
            return text[:end]
    return None


@torch.no_grad()
def _answer(model: Any, rows: list[dict[str, Any]]) -> list[str]:
    """Return the beginning of the likeliest response to each question."""
    tokenizer, prompts = model.tokenizer, []
    for row in rows:
        texts = "\n\n".join(source["text"] for source in row["sources"])
        if "prompt" in row:
            prompts.append(row["prompt"].replace("{sources}", texts))
        else:
            message = {"role": "user", "content": row["messages"][0]["content"].replace("{sources}", texts)}
            prompts.append(tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True))
    # A chat template writes the special tokens.
    inputs = tokenizer(
        prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens="prompt" in rows[0]
    )
    output = model.generator.generate(
        input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=TOKENS, do_sample=False
    )
    return tokenizer.batch_decode(output[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)


def main() -> None:
    """Ask the model and write the prompts."""
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    source, out, kind, file = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    count = int(sys.argv[5]) if len(sys.argv) > 5 else 150
    rows = list(read_strategyqa(file) if kind == "strategyqa" else read_squad(file, kind))
    random.Random(SEED).shuffle(rows)
    model = expound.load(source, task="generation", dtype="float32")
    if not model.tokenizer.chat_template:
        rows = [_make_completion(row) for row in rows]
    right_rows: list[dict[str, Any]] = []
    n_asked = 0
    while len(right_rows) < count and n_asked < len(rows):
        several = rows[n_asked : n_asked + AT_ONCE]
        is_given = "response" in several[0]
        responses = [row["response"] for row in several] if is_given else _answer(model, several)
        for row, response in zip(several, responses, strict=True):
            answer = response if is_given else _cut_answer(response, row)
            if answer is not None:
                right_rows.append(
                    {name: value for name, value in row.items() if name != "answers"} | {"response": answer}
                )
        n_asked += len(several)
        print(f"{len(right_rows)} of {n_asked} answers are right", flush=True)
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in right_rows), encoding="utf-8")
    facts = {"asked": n_asked, "right": len(right_rows), "tokens": TOKENS, "seed": SEED}
    out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
