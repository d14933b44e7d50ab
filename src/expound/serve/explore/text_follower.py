"""The text of an answer while the model generates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from expound.errors import ExpoundError

SendText = Callable[[str], None]
"""Receives the next part of an answer while the model generates it."""


class TextFollower(StoppingCriteria):
    """Sends the text of an answer while its tokens are generated, and ends it at one of the texts `stops`."""

    def __init__(self, tokenizer: Any, send: SendText, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops, self.send = tokenizer, stops, send
        self.n_prompt, self.sent, self.is_stopped = -1, "", False

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Return whether the answer has ended [1], given the tokens [1, L] of the prompt and the answer until now."""
        if self.n_prompt < 0:
            self.n_prompt = input_ids.shape[1] - 1
        text = self._cut(self.decode(input_ids[0, self.n_prompt :].tolist()))
        if not self.is_stopped:
            # Not sent yet: what may be the beginning of a stop sequence, and the first bytes of a character.
            held = max(map(len, self.stops), default=1) - 1
            self._send_until(text[: max(0, len(text) - held)].rstrip("\ufffd"))
        return torch.full((len(input_ids),), self.is_stopped, device=input_ids.device)

    def finish(self, ids: Sequence[int]) -> str:
        """Send the rest of the answer, and return the whole of it.

        Raises:
            ExpoundError: later tokens have changed text that was sent.
        """
        text = self._cut(self.decode(ids))
        self._send_until(text)
        if self.sent != text:
            raise ExpoundError("the tokenizer changes text before a token that follows: ask without 'stream'")
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _cut(self, text: str) -> str:
        places = [text.find(stop) for stop in self.stops if stop in text]
        self.is_stopped = bool(places)
        return text[: min(places, default=len(text))]

    def _send_until(self, text: str) -> None:
        if len(text) > len(self.sent) and text.startswith(self.sent):
            self.send(text[len(self.sent) :])
            self.sent = text
