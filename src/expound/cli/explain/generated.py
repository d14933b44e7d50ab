"""`expound explain --task generation`: which parts of the prompt the response depends on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from expound.cli.shared.console import say
from expound.data.hub import read_text
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound.explainers.plan import Plan
    from expound.models import ExplainedModel
    from expound.reports.explanations import Explanation

LONG_RUN = 60.0
"""Seconds above which the time of a method is told before it begins."""


def make_example(
    model: ExplainedModel, text: str | None, prompt: Path | None, messages: Path | None, sources: Sequence[str],
    response: str | None, max_new_tokens: int, temperature: float, seed: int, *, raw: bool, dry_run: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the example that the options describe, with the model's response if it lacks one and this is no dry run.

    Raises:
        ExpoundError: also an empty response of the model.
    """
    example = apply_chat_template(model, read_options(text, prompt, messages, sources, response), raw=raw)
    return example if dry_run else add_response(model, example, max_new_tokens, temperature, seed)


def read_options(
    text: str | None, prompt: Path | None, messages: Path | None, sources: Sequence[str], response: str | None
) -> dict[str, Any]:
    """Return the example as the options describe it.

    Raises:
        ExpoundError: not exactly one of text, prompt and messages, an unreadable file, or invalid JSON.
    """
    if (text, prompt, messages).count(None) != 2:
        raise ExpoundError("give one of a text, --prompt FILE and --messages FILE")
    example: dict[str, Any] = {"prompt": text}
    if prompt is not None:
        example = {"prompt": read_text(prompt, "--prompt: ").rstrip("\n")}
    if messages is not None:
        try:
            content = json.loads(read_text(messages, "--messages: "))
        except json.JSONDecodeError as error:
            raise ExpoundError(f"--messages: {messages} is not JSON: {error}") from error
        example = content if isinstance(content, dict) else {"messages": content}
    if sources:
        example["sources"] = _read_sources(sources)
    if response is not None:
        example["response"] = response
    return example


def apply_chat_template(model: ExplainedModel, example: dict[str, Any], *, raw: bool) -> dict[str, Any]:
    """Return the example with its plain prompt as one user message if the tokenizer has a chat template; say which.

    Raises:
        ExpoundError: `raw` with messages, which only a chat template can read.
    """
    if "prompt" not in example:
        if raw:
            raise ExpoundError("--raw-prompt goes with a plain prompt: leave it out with --messages")
        say("prompt: messages in the chat template")
        return example
    if raw or not getattr(model.processing_class, "chat_template", None):
        reason = "--raw-prompt" if raw else "the tokenizer has no chat template"
        say(f"prompt: as it is ({reason})")
        return example
    say("prompt: one user message in the chat template (as it is with --raw-prompt)")
    others = {name: value for name, value in example.items() if name != "prompt"}
    return others | {"messages": [{"role": "user", "content": example["prompt"]}]}


def parse_target(text: str) -> Any:
    """Return the explained parts of the response: a name such as `sentences` (the default), or spans as 0:4,7:9."""
    if text == "predicted":
        return "sentences"
    spans = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", part)
        if found is None:
            return text
        spans.append((int(found[1]), int(found[2])))
    return spans


def describe_costs(
    model: ExplainedModel, example: dict[str, Any], plans: Sequence[Plan], max_new_tokens: int
) -> list[str]:
    """Return one line per method with lengths, units, passes and seconds, and one with the memory of a pass.

    Of a server that is one line per method with requests and tokens, and one with their sum.
    """
    from expound.explainers.plan import add_placeholder_response, count_saved_bytes, describe_requests, measure_pass
    from expound.reports.text import format_duration

    if model.is_remote:
        lines = [f"{plan}: {describe_requests([plan])}" for plan in plans]
        return [*lines, f"in all, with the response: {describe_requests(plans, 'response' not in example)}"]
    example = add_placeholder_response(model, example, max_new_tokens)
    seconds = measure_pass(model, [example])
    lines, has_backward = [], False
    for plan in plans:
        lines.append(f"{plan}, about {format_duration(seconds * plan.cost)}")
        has_backward = has_backward or bool(plan.backward)
    if has_backward:
        amount = f"{count_saved_bytes(model, example) / 2**20:.0f} MiB"
        lines.append(f"a forward pass with a backward pass needs {amount} in addition to the weights")
    return lines


def warn_of_long_runs(model: ExplainedModel, example: dict[str, Any], plans: Sequence[Plan]) -> None:
    """Say which methods will take over a minute, or how many requests a server gets."""
    from expound.explainers.plan import MEASURED_PASSES, describe_requests, measure_pass
    from expound.reports.text import format_duration

    if model.is_remote:
        say(describe_requests(plans))
        return
    if sum(plan.cost for plan in plans) < MEASURED_PASSES:
        return
    seconds = measure_pass(model, [example])
    for plan in plans:
        if seconds * plan.cost > LONG_RUN:
            say(f"{plan.method}: about {format_duration(seconds * plan.cost)}")


def tell_costs(
    model: ExplainedModel, example: dict[str, Any], methods: Sequence[str], target: Any, unit: Any, max_new_tokens: int,
    *, attribute_target: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Say what will take over a minute; with `dry_run` print the costs of all methods."""
    from expound.explainers.plan import plan_work

    work = (target, unit, max_new_tokens)
    plans = [plan_work(model, example, spec, *work, attribute_target=attribute_target) for spec in methods]
    if dry_run:
        typer.echo("\n".join(describe_costs(model, example, plans, max_new_tokens)))
    else:
        warn_of_long_runs(model, example, plans)


def resample(
    model: ExplainedModel, example: dict[str, Any], n_samples: int, max_new_tokens: int, temperature: float, seed: int,
    pattern: str, *, dry_run: bool, quiet: bool,
) -> Explanation:  # fmt: skip
    """Return how much each sentence of the response's thoughts changes the answer; with `dry_run` end after the cost.

    Raises:
        ExpoundError: a response without thoughts, or a dry run without a response.
    """
    from expound.explainers.resampling import describe_resampling, resample_thoughts
    from expound.models.generation.examples import prompt_to_row
    from expound.models.generation.model import GeneratingModel

    assert isinstance(model, GeneratingModel)
    if dry_run and "response" not in prompt_to_row(example):
        raise ExpoundError("--resample counts the sentences of a response: give one, or leave out --dry-run")
    work = describe_resampling(model, example, n_samples, max_new_tokens)
    if dry_run:
        typer.echo(work)
        raise typer.Exit
    say(work)
    # Greedy continuations would all be the same.
    settings: dict[str, Any] = {"temperature": temperature or 1.0, "seed": seed, "pattern": pattern}
    settings |= {"n_samples": n_samples, "max_new_tokens": max_new_tokens}
    return resample_thoughts(model, example, show_progress=False if quiet else None, **settings)


def add_response(
    model: ExplainedModel, example: dict[str, Any], max_new_tokens: int, temperature: float, seed: int
) -> dict[str, Any]:
    """Return the example with a response, generated by the model if it is missing; say whether it was cut.

    Raises:
        ExpoundError: the model's response is empty.
    """
    from expound.models.generation.model import GeneratingModel

    assert isinstance(model, GeneratingModel)
    (row,) = model.respond([example], max_new_tokens, temperature, seed)
    ends = model.generator.generation_config.eos_token_id
    end_ids = ends if isinstance(ends, list) else [ends]
    if "prompt_length" in row and len(row["response"]) == max_new_tokens and row["response"][-1] not in end_ids:
        say(f"the answer was cut at {max_new_tokens} tokens: a larger --max-new-tokens lets it end")
    return row


def _read_sources(options: Sequence[str]) -> dict[str, str]:
    """Return texts by name, from FILE (named by the file without its suffix) or NAME=FILE."""
    sources: dict[str, str] = {}
    for option in options:
        given_name, _, path = option.rpartition("=")
        file = Path(path)
        name = given_name or file.stem
        if name in sources:
            raise ExpoundError(f"--source: two sources are called {name!r}: name them with NAME=FILE")
        # The line break at a file's end is no part of the document: Python and this command explain the same prompt.
        sources[name] = read_text(file, "--source: ").rstrip("\n")
    return sources
