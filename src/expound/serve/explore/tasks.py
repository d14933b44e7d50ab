"""What differs between tasks: how a question becomes an example, and what its page shows of the model's output."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from expound.data.alignment import find_text_of_tokens
from expound.data.readers.exchanges import join_text_parts
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers import number_units
from expound.models import Batch, ExplainedModel
from expound.models.generation.examples import prompt_to_row
from expound.models.generation.vision_language import VisionLanguageModel
from expound.reports.highlighted.pieces import Piece, cut_response
from expound.reports.records import Exchange, Extent, find_target_spans
from expound.serve.explore.question import PREDICTED, Question

EXAMPLE_PREFIX = "example-"


class OutputScore(NamedTuple):
    """A label with its probability or value, or a part of an answer with its log-probability and number of tokens."""

    label: str
    value: float
    n_tokens: int = 0

    @property
    def share(self) -> float:
        """The length of the bar, from 0 to 1; for a text, the geometric mean of its tokens' probabilities."""
        # The probability of a long text is too small for a bar, and would compare lengths rather than certainty.
        value = math.exp(self.value / self.n_tokens) if self.n_tokens else self.value
        return min(1.0, max(0.0, value))

    def to_dict(self) -> dict[str, float]:
        """Return what the page's script needs."""
        return {"value": self.value, "share": self.share}


def is_generating(model: ExplainedModel) -> bool:
    """Return whether the model answers by a text of its own."""
    return model.task.is_generated


def make_example(model: ExplainedModel, question: Question, picture: Image.Image | None = None) -> Any:
    """Return the question as an example of the library.

    Raises:
        ExpoundError: the model gives no word of the text a tag, or not the stretch that the question asks for.
    """
    if is_generating(model):
        return _make_prompt(model, question, picture)
    if picture is not None:
        return picture
    if model.task.tags_spans:
        return _find_tagged_row(model, question)
    if question.pair.strip():
        return question.text, question.pair
    return question.text


def takes_images(model: ExplainedModel) -> bool:
    """Return whether a picture can be a part of the model's prompts."""
    return isinstance(model, VisionLanguageModel)


def _make_prompt(model: Any, question: Question, picture: Image.Image | None) -> dict[str, Any]:
    """Return messages for models with a chat template, else a prompt, with the documents, and a picture before all.

    Documents replace {sources} or {NAME} in the question. If it has neither and does not quote a document, they are
    left to a chat template that takes documents, else put before the question.
    """
    answer, messages = question.response, read_conversation(question.text)
    messages = messages or [{"role": "user", "content": question.text}]
    template = str(getattr(model.tokenizer, "chat_template", None) or "")
    if not template and len(messages) > 1:
        raise ExpoundError("the model has no chat template: it continues a text, and reads no conversation")
    asked = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=0)
    text = str(messages[asked].get("content") or "")
    marks = ["{sources}"]
    for name, document in question.sources:
        if name:
            marks.append(f"{{{name}}}")
        if document:
            marks.append(document)
    if question.sources and "documents" not in template and not any(mark in text for mark in marks):
        text = f"{{sources}}\n\n{text}"
    messages[asked]["content"] = text
    example: dict[str, Any] = {"sources": [{"name": name, "text": content} for name, content in question.sources]}
    if template or picture is not None:
        system = [{"role": "system", "content": question.system}] if question.system.strip() else []
        if picture is not None:
            messages[asked]["content"] = [{"type": "image", "image": picture}, {"type": "text", "text": text}]
        example["messages"] = [*system, *messages]
    else:
        example["prompt"] = text
        # A decoder continues the prompt: "why?because" would be tokenized unlike anything the model has seen.
        if not (model.is_encoder_decoder or text[-1:].isspace() or answer[:1].isspace()):
            answer = f" {answer}"
    if question.response.strip():
        example["response"] = answer
    return example


def read_conversation(text: str) -> list[dict[str, Any]]:
    """Return the messages of a question that is a conversation as JSON; none of any other question.

    Raises:
        ExpoundError: a message whose content is not text: a server opens no files that a page names.
    """
    try:
        messages = json.loads(text)
    # Values may be nested too deeply, and numbers too long.
    except (ValueError, RecursionError):
        return []
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        return []
    for message in messages:
        message["content"] = join_text_parts(message.get("content"))
        if not isinstance(message["content"], str | None):
            raise ExpoundError(f"expected the content of a message as text, got {message['content']!r:.60}")
    return messages


def _find_tagged_row(model: Any, question: Question) -> dict[str, Any]:
    """Return the text with the stretch whose tag is explained: the target's, else the first that the model tags."""
    rows: Sequence[dict[str, Any]] = model.expand_examples([{"text": question.text}])
    for row in rows:
        start, end = row["span"]
        if question.target in (PREDICTED, f"{start}-{end}"):
            return row
    if not rows:
        raise ExpoundError("the model tags nothing in this text")
    raise ExpoundError("the model tags no such stretch of this text")


def list_targets(model: ExplainedModel, question: Question) -> dict[str, str]:
    """Return the targets that can be chosen by their value in a form: the prediction, labels, tagged stretches."""
    targets = {PREDICTED: "the prediction"}
    if model.task.supports("labels"):
        targets |= {label: label for label in model.labels}
    if model.task.tags_spans and question.text.strip():
        for row in model.expand_examples([{"text": question.text}]):
            start, end = row["span"]
            targets[f"{start}-{end}"] = question.text[start:end]
    return targets


def make_train_command(model: ExplainedModel) -> str:
    """Return the command that trains a model with rows whose words were marked; empty if they do not fit its task."""
    if not model.task.supports("classes") or model.modality != "text" or model.black_box_reason:
        return ""
    source = shlex.quote(str(model.config._name_or_path or "MODEL"))
    return f"expound train er_joint --model {source} --data jsonl:marks.jsonl --output-dir guided"


def score_outputs(model: ExplainedModel, batch: Batch, output: Tensor, question: Question) -> list[OutputScore]:
    """Return what is shown of the model's output for a batch of one example, possibly with parts removed.

    `output`: the probabilities [1, C] of the example without the removed parts; of an answer its table [1, R, 2].
    Returns the value of each label, of the extracted answer, or of the whole generated answer and each of its T parts.
    """
    if is_generating(model):
        exchange = get_exchange(batch)
        scores, title = list[OutputScore](), "the whole answer"
        for span in [(0, len(exchange.tokens)), *find_target_spans(exchange, question.rows)]:
            value = float(model.task.log_probability(output, torch.tensor([span], device=output.device)))
            scores.append(OutputScore(title, value, span[1] - span[0]))
            title = "the chosen part"
        return scores
    if model.task.reads_context:
        # Thousands of spans are possible answers: only the one of the full input is followed.
        with torch.no_grad(), model.evaluation_mode():
            logits = model(batch).logits
        target = model.task.predict(logits, batch)
        answer = model.describe_targets(batch, target, logits)[0].text
        return [OutputScore(answer, float(model.task.probability(output, target)[0]))]
    values = output[0].tolist()
    names = ("value",) if model.task.predicts_number and len(values) == 1 else model.labels
    return [OutputScore(name, value) for name, value in zip(names, values, strict=True)]


def get_exchange(batch: Batch) -> Exchange:
    """Return the prompt and answer of a batch of one."""
    (exchange,) = batch.exchanges or ()
    return exchange


def cut_answer(batch: Batch, question: Question) -> list[Piece]:
    """Return the answer of a batch of one, cut into the parts that are explained."""
    exchange = get_exchange(batch)
    extents: list[Extent] = [exchange.extent(span) for span in find_target_spans(exchange, question.rows)]
    return cut_response(exchange.response, extents)


def find_removed_positions(batch: Batch, unit: UnitName, removed: Iterable[int]) -> Tensor:
    """Return the positions [L] of the removed units of a batch of one, and of the texts whose units are all removed.

    Positions without content (special tokens, padding) always stay.
    """
    number = number_units(batch, unit)[0]
    is_removed = torch.isin(number, torch.tensor(sorted(removed), dtype=torch.long, device=number.device))
    if batch.alignments is None:
        return is_removed
    text_of = torch.full_like(number, -1)
    text_of[batch.attended[0]] = torch.tensor(find_text_of_tokens(batch.alignments[0]), device=number.device)
    for text in range(int(text_of.max()) + 1):
        is_inside = text_of == text
        is_unit = is_inside & (number >= 0)
        # Otherwise spaces and line ends between the units of a removed document would stay in the prompt.
        if is_unit.any() and is_removed[is_unit].all():
            is_removed |= is_inside
    return is_removed & batch.content[0]


def example_to_question(model: str, explained: ExplainedModel, index: int, row: Mapping[str, Any]) -> Question | None:
    """Return example number `index` of a server as a question, or None if it does not suit the model.

    Image models take images, other models texts, and language models prompts and chats.
    """
    if is_generating(explained):
        return _prompt_to_question(model, row)
    if explained.modality == "image":
        return Question(model, picture=f"{EXAMPLE_PREFIX}{index}") if "image" in row else None
    if "text" not in row:
        return None
    return Question(model, text=row["text"], pair=row.get("text_pair") or "")


def _prompt_to_question(model: str, row: Mapping[str, Any]) -> Question | None:
    example = prompt_to_row(row)
    *system, last = messages = example.get("messages") or [{"role": "user", "content": example.get("prompt")}]
    is_chat = any(message.get("role") != "system" for message in system)
    # The form has one field for instructions and one for the question.
    # Parts of messages may be images.
    if any(isinstance(message.get("content"), list) for message in messages):
        return None
    if is_chat or len(system) > 1 or last.get("role") != "user":
        system, last = [], {"content": json.dumps(messages, ensure_ascii=False, indent=1)}
    if last["content"] is None:
        return None
    sources = example.get("sources") or {}
    if isinstance(sources, Mapping):
        documents = tuple(sources.items())
    else:
        documents = tuple((source["name"], source["text"]) for source in sources)
    answer = example.get("response")
    return Question(
        model,
        text=last["content"],
        sources=documents,
        system=str(system[0]["content"]) if system else "",
        response=answer if isinstance(answer, str) else "",
    )
