"""Language models behind a server, explained by its log-probabilities of changed prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from math import isfinite
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, StoppingCriteria

from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture, Outputs, require_response
from expound.models.explained import ExplainedModel
from expound.models.generation.model import GeneratingModel
from expound.models.generation.server import CompletionsServer, RequestRefusedError, WrongAnswerError
from expound.models.hugging_face import REMOVAL_ONLY
from expound.models.perturbation.prefix_tree import PerturbedText
from expound.models.perturbation.run import run_perturbed
from expound.models.tasks import Generation, OutputKind

FORMS: tuple[Mapping[str, Any], ...] = (
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"echo": True, "logprobs": 1, "max_tokens": 1},
    {"prompt_logprobs": 0, "max_tokens": 1},
)
"""Ways to ask for log-probabilities of a prompt: OpenAI's, also for servers that must generate a token, and vLLM's."""
REMEMBERED = 1 << 16
"""Prompts whose answers are kept."""
BEHIND_A_SERVER = (
    f"the model is behind a server, which gives neither gradients nor hidden states: {REMOVAL_ONLY} by 'remove', "
    "'mask' or 'pad'"
)


class ServedModel(PreTrainedModel):
    """A language model without weights, which generates by asking a server."""

    def __init__(self, server: CompletionsServer, tokenizer: Any) -> None:
        config = PretrainedConfig(vocab_size=1 + max(tokenizer.get_vocab().values()))
        super().__init__(config)
        config.model_type, config.name_or_path = "completions", f"{server.url}?model={server.model}"
        self.server, self.tokenizer = server, tokenizer
        self.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def forward(self, input_ids: Tensor) -> Any:
        """Raise ExpoundError: the server gives no hidden states."""
        raise ExpoundError(BEHIND_A_SERVER)

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        generation_config: GenerationConfig,
        stopping_criteria: Sequence[StoppingCriteria] = (),
    ) -> Tensor:
        """Return prompts [N, S] with the tokens that the server generates after each, padded at the end.

        Raises:
            ExpoundError: there are stopping criteria; the server returns its response as a whole.
        """
        if len(stopping_criteria):
            raise ExpoundError("a response cannot be followed token by token behind a server")
        end = generation_config.pad_token_id or 0
        rows = [self._continue(row, generation_config, number) for number, row in enumerate(input_ids.tolist())]
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=end)

    def _continue(self, prompt: list[int], generation_config: GenerationConfig, number: int) -> list[int]:
        """Return a prompt with the tokens that the server generates after it; `number`: that of the draw."""
        payload = {"prompt": prompt, "max_tokens": generation_config.max_new_tokens, "temperature": 0}
        if generation_config.do_sample:
            # torch's generator was seeded for this response.
            payload |= {
                "temperature": generation_config.temperature,
                "top_p": 1,
                "seed": (torch.initial_seed() + number) % 2**31,
            }
        try:
            text, reason, ids = self.server.ask(payload | {"return_token_ids": True}, read_generated)
        # vLLM's option, which other servers may refuse.
        except RequestRefusedError:
            text, reason, ids = self.server.ask(payload, read_generated)
        if ids is None:
            ids = self._tokenize(prompt, text, reason)
        return prompt + ids

    def _tokenize(self, prompt: list[int], text: str, reason: str) -> list[int]:
        """Return the tokens of a generated text, with the end-of-text token if it ended by itself."""
        # Tokenized after the prompt: alone a text could begin with another token.
        whole = self.tokenizer.decode(prompt, clean_up_tokenization_spaces=False) + text
        ids: list[int] = self.tokenizer(whole, add_special_tokens=False)["input_ids"]
        if ids[: len(prompt)] != prompt:
            raise ExpoundError(
                f"{self.server.url} names no token ids of its response, and the text cannot be tokenized after the "
                "prompt: give the response yourself"
            )
        end = self.tokenizer.eos_token_id
        return ids[len(prompt) :] + ([end] if reason == "stop" and end is not None else [])


class CompletionsModel(GeneratingModel):
    """A language model behind a server with OpenAI's completions protocol, whose response to a prompt is explained.

    Methods that remove input apply: each changed prompt, with the response after it, is sent as token ids, and the
    server returns their log-probabilities (`echo` with `logprobs`, or vLLM's `prompt_logprobs`); tokens that differ
    from those sent are refused. The latest 65,536 answers are kept: a prompt is asked once, also if a call is repeated.

    Args:
        server: the server.
        tokenizer: the tokenizer of the server's model.
        max_length: the most tokens of prompt and response together, if fewer than the tokenizer says.
    """

    is_remote = True
    black_box_reason = BEHIND_A_SERVER

    def __init__(self, server: CompletionsServer, tokenizer: Any, max_length: int | None = None) -> None:
        # Not GeneratingModel's, which looks for a head.
        ExplainedModel.__init__(self, ServedModel(server, tokenizer), tokenizer, "classification", max_length)
        self.task = Generation()
        self.server, self.answers, self.spellings = server, dict[bytes, Tensor](), dict[int, tuple[str, ...]]()
        # Every answer is checked when it is read; the checks of a model need its weights.
        self.is_checked = False

    @property
    def embedding(self) -> nn.Module:
        """Raise ExpoundError: the server gives no embeddings."""
        raise ExpoundError(BEHIND_A_SERVER)

    def with_output(self, output: OutputKind | None) -> Self:
        """Return a model explained by `log_prob` or `prob`; raise ExpoundError for logits, which no server gives."""
        if output == "logit":
            raise ExpoundError("a server gives no logits: choose output='log_prob' or 'prob'")
        return super().with_output(output)

    def run_pass(self, batch: Batch, embeddings: Tensor | None, capture: Capture) -> Outputs:
        """Ask for each example and return a table [B, R, 1] of log-probabilities, zero after a response's end.

        Raises:
            ExpoundError: anything but the response's log-probabilities is asked for.
        """
        if embeddings is not None or capture != Capture():
            raise ExpoundError(BEHIND_A_SERVER)
        require_response(batch)
        return Outputs(run_perturbed(self, batch, batch.attended[None], "remove")[0])

    def score_texts(self, texts: Sequence[PerturbedText]) -> list[Tensor]:
        """Return the log-probabilities [R, 1] of each text's response tokens; texts that were answered are not asked.

        Raises:
            ExpoundError: texts with foils; the server gives no usable answer.
        """
        if any(text.foil is not None for text in texts):
            raise ExpoundError("a server gives no log-probability of another token: give the foil as a response")
        for name in list(self.answers)[: max(0, len(self.answers) - REMEMBERED)]:
            del self.answers[name]
        names = [blake2b(f"{text.response} {text.ids.tolist()}".encode()).digest() for text in texts]
        new = {name: text for name, text in zip(names, texts, strict=True) if name not in self.answers}
        if new and self.server.form is None:
            name, text = new.popitem()
            self.answers[name] = self._find_form(text)
        form, order = self.server.form or {}, list(new)

        def read(number: int, answer: Any) -> None:
            self.answers[order[number]] = self._read_scores(form, new[order[number]], answer)

        self.server.ask_all([make_payload(form, text) for text in new.values()], read)
        return [self.answers[name] for name in names]

    def _find_form(self, text: PerturbedText) -> Tensor:
        """Return a text's log-probabilities [R, 1], and remember in which way the server gave them.

        Raises:
            ExpoundError: it gives them in none.
        """
        reasons: dict[str, None] = {}
        for form in FORMS:
            try:
                scores = self.server.ask(make_payload(form, text), partial(self._read_scores, form, text))
            except (RequestRefusedError, WrongAnswerError) as error:
                reasons[str(error)] = None
            else:
                self.server.form = form
                return scores
        raise ExpoundError(
            f"{self.server.url} does not return the log-probabilities of the tokens that it is sent, neither by echo "
            f"with logprobs nor by prompt_logprobs: {'; '.join(reasons)}"
        )

    def _read_scores(self, form: Mapping[str, Any], text: PerturbedText, answer: Any) -> Tensor:
        """Return the log-probabilities [R, 1] in an answer; raise WrongAnswerError unless it is about this text."""
        ids, choice = text.ids.tolist(), answer["choices"][0]
        values = self._read_echo(ids, choice) if "echo" in form else read_prompt_logprobs(ids, choice)
        scores = [float(value) for value in values[-text.response :]]
        # The largest is 0, but for rounding.
        if not all(isfinite(score) and score < 1e-3 for score in scores):
            raise WrongAnswerError(f"log-probabilities from {min(scores)} to {max(scores)}")
        return torch.tensor(scores, dtype=self.dtype)[:, None]

    def _read_echo(self, ids: list[int], choice: Any) -> list[Any]:
        """Return the log-probability beside each echoed token."""
        logprobs = choice["logprobs"] or {"tokens": [], "token_logprobs": []}
        tokens, values = logprobs["tokens"], logprobs["token_logprobs"]
        # A generated token may follow.
        if not len(ids) <= len(tokens) == len(values) <= len(ids) + 1:
            raise WrongAnswerError(f"{len(values)} log-probabilities for {len(ids)} tokens")
        for place, (token, shown) in enumerate(zip(ids, tokens, strict=False)):
            if not self._is_token(token, shown):
                sent = self.tokenizer.decode([token])
                raise WrongAnswerError(f"token {place} is {shown!r}, and {sent!r} was sent")
        return list(values[: len(ids)])

    def _is_token(self, token: int, shown: str) -> bool:
        """Return whether a server can show this token so: as its text, its name in the vocabulary, or its id."""
        # A part of a character has no text.
        if "\ufffd" in shown or shown.startswith("bytes:"):
            return True
        if token not in self.spellings:
            names = [self.tokenizer.convert_ids_to_tokens(token), self.tokenizer.decode([token]), f"token_id:{token}"]
            # Special tokens may be left out.
            if token in self.tokenizer.all_special_ids:
                names.append("")
            self.spellings[token] = tuple(name.strip() for name in names)
        return shown.strip() in self.spellings[token]


def read_generated(answer: Any) -> tuple[str, str, list[int] | None]:
    """Return the generated text, the reason of its end, and its token ids if the server names them."""
    choice = answer["choices"][0]
    ids = choice.get("token_ids")
    if ids is not None:
        ids = [int(token) for token in ids]
    return str(choice["text"]), str(choice["finish_reason"]), ids


def make_payload(form: Mapping[str, Any], text: PerturbedText) -> dict[str, Any]:
    """Return the request for the log-probabilities of a text."""
    # Some servers divide logits by the temperature first.
    return {"prompt": text.ids.tolist(), "temperature": 1, **form}


def read_prompt_logprobs(ids: list[int], choice: Any) -> list[Any]:
    """Return each token's log-probability from vLLM's form: a dictionary by token id per position but the first."""
    entries = choice["prompt_logprobs"] or []
    if len(entries) != len(ids):
        raise WrongAnswerError(f"{len(entries)} log-probabilities for {len(ids)} tokens")
    values = [None]
    for place, token in enumerate(ids[1:], 1):
        if str(token) not in entries[place]:
            raise WrongAnswerError(f"token {place} is {' or '.join(entries[place])}, and {token} was sent")
        values.append(entries[place][str(token)]["logprob"])
    return values
