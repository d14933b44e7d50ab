#!/usr/bin/env python3
"""Train SmolLM2 to cite what its answers need: TRL's GRPO with a LoRA adapter and the reward `necessity`.

Usage: citation_rewards.py MODEL SQUAD.json OUT_DIR warm|necessity|shuffled [STEPS]

Questions of SQuAD with three numbered passages; one of them has the answer. `warm` teaches the form "answer [2]" by a
few supervised steps and writes the merged model to OUT_DIR/warm. The other two start from it and train STEPS steps of
GRPO with two rewards: whether the answer is right, and `necessity`, measured on the frozen warm model. `shuffled`
permutes necessity among the completions of a prompt, which leaves its values and takes its information. Each writes the
answers on held-out questions to OUT_DIR/NAME.jsonl, with the necessity of each by the warm model.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from make_prompts import _has_words, read_squad
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

import expound
from expound.rewards import find_citations, necessity

SEED, N_PASSAGES, N_HELD_OUT, TOKENS = 0, 3, 100, 16
WARM_STEPS, WARM_BATCH, PROMPTS, GENERATIONS = 24, 8, 2, 4
LORA = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def read_questions(path: Path, tokenizer: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the questions to train on, and the held-out ones, which are of other articles."""
    questions = []
    draw = random.Random(SEED)
    for row in read_squad(path, "squad"):
        # The needed passage and the first others, in random order.
        texts = [source["text"] for source in row["sources"]]
        needed = row["sources"][[source["name"] for source in row["sources"]].index(row["evidence"][0])]["text"]
        texts = [needed, *[text for text in texts if text != needed][: N_PASSAGES - 1]]
        draw.shuffle(texts)
        question = row["messages"][0]["content"].removeprefix("{sources}\n\n")
        passages = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts, 1))
        message = {"role": "user", "content": f"{passages}\n\n{question} End with the number of the passage."}
        prompt = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        if len(set(texts)) == N_PASSAGES and all(prompt.count(text) == 1 for text in texts) and len(prompt) < 1200:
            needed_number = texts.index(needed) + 1
            questions.append({"prompt": prompt, "sources": texts, "needed": needed_number, "answers": row["answers"]})
    # Articles follow each other: with a gap between them, the two parts are of different articles.
    held_out, train = questions[: len(questions) // 4], questions[len(questions) // 2 :]
    draw.shuffle(held_out)
    draw.shuffle(train)
    return train, held_out[:N_HELD_OUT]


def correct(completions: list[str], answers: list[list[str]], **columns: Any) -> list[float]:
    """Return 1 for each completion that has the words of a right answer, else 0."""
    return [float(any(_has_words(text, each) for each in row)) for text, row in zip(completions, answers, strict=True)]


def warm_up(model: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> None:
    """Teach the form "answer [2]" by supervised steps on right answers."""
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=3e-4)
    for step in range(WARM_STEPS):
        part = rows[step * WARM_BATCH : (step + 1) * WARM_BATCH]
        answers = [f"{min(row['answers'], key=len)} [{row['needed']}]{tokenizer.eos_token}" for row in part]
        texts = [row["prompt"] + answer for row, answer in zip(part, answers, strict=True)]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        counts = [len(tokenizer(answer, add_special_tokens=False)["input_ids"]) for answer in answers]
        last = max(counts) + 1
        logits = model(**inputs, logits_to_keep=last).logits[:, :-1].float()
        labels = inputs["input_ids"][:, 1 - last :].clone()
        for row, count in enumerate(counts):
            labels[row, : labels.shape[1] - count] = -100
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"warm-up step {step + 1}: loss {float(loss.detach()):.3f}", flush=True)


@torch.no_grad()
def answer(model: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> list[str]:
    """Return the likeliest completion of each prompt."""
    model.eval()
    completions: list[str] = []
    for start in range(0, len(rows), 12):
        prompts = [row["prompt"] for row in rows[start : start + 12]]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        output = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        completions += tokenizer.batch_decode(output[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return completions


def evaluate(model: Any, warm: Any, tokenizer: Any, rows: list[dict[str, Any]], out: Path) -> None:
    """Write the answers to held-out questions, whether they are right, what they cite and how much they need it."""
    completions = answer(model, tokenizer, rows)
    prompts, sources = [row["prompt"] for row in rows], [row["sources"] for row in rows]
    needed = necessity(warm)(prompts, completions, sources=sources)
    right = correct(completions, [row["answers"] for row in rows])
    with out.open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            cited = [each.source + 1 for each in find_citations(completions[number])]
            line = {"completion": completions[number], "needed": row["needed"], "cited": cited}
            line |= {"right": right[number], "necessity": needed[number]}
            file.write(json.dumps(line) + "\n")
    print(out.name, "right", sum(right) / len(rows), "necessity", sum(needed) / len(rows), flush=True)


def main() -> None:
    """Train one arm and evaluate it."""
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    source, squad, folder, arm = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    steps = int(sys.argv[5]) if len(sys.argv) > 5 else 24
    folder.mkdir(parents=True, exist_ok=True)
    set_seed(SEED)
    start = time.process_time()
    base = source if arm == "warm" else str(folder / "warm")
    tokenizer = AutoTokenizer.from_pretrained(source)
    train, held_out = read_questions(squad, tokenizer)
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16), LORA)
    n_warm = WARM_STEPS * WARM_BATCH
    if arm == "warm":
        warm_up(policy, tokenizer, train[:n_warm])
        merged = policy.merge_and_unload()
        merged.save_pretrained(base := str(folder / "warm"))
        tokenizer.save_pretrained(base)
        warm = expound.load(base, task="generation")
        evaluate(merged, warm, tokenizer, held_out, folder / "warm.jsonl")
    else:
        warm = expound.load(base, task="generation")
        necessity_reward, draw = necessity(warm), random.Random(SEED)

        def shuffle_necessity(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
            rewards = necessity_reward(prompts, completions, **columns)
            groups = [rewards[first : first + GENERATIONS] for first in range(0, len(rewards), GENERATIONS)]
            return [value for group in groups for value in draw.sample(group, len(group))]

        options = GRPOConfig(
            output_dir=str(folder / arm), per_device_train_batch_size=PROMPTS * GENERATIONS,
            num_generations=GENERATIONS, max_completion_length=TOKENS, max_steps=steps, learning_rate=2e-4,
            lr_scheduler_type="constant", bf16=True, use_cpu=True, gradient_checkpointing=False, beta=0.0,
            logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, seed=SEED,
        )  # fmt: skip
        data = Dataset.from_list(train[n_warm : n_warm + 2000])
        reward = necessity_reward if arm == "necessity" else shuffle_necessity
        trainer = GRPOTrainer(policy, [reward, correct], options, data, processing_class=tokenizer)
        trainer.train()
        (folder / f"{arm}-log.json").write_text(json.dumps(trainer.state.log_history), encoding="utf-8")
        evaluate(policy, warm, tokenizer, held_out, folder / f"{arm}.jsonl")
    facts = {"arm": arm, "steps": steps, "seed": SEED, "cpu_seconds": round(time.process_time() - start)}
    (folder / f"{arm}-facts.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
