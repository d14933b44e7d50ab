"""A memory of what was found out about each example, as a teacher's scores, kept for some epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from exegete.models import Batch

MAX_NUMBERS = 1 << 25


class TeacherMemory(nn.Module):
    """Numbers by example and target; part of a checkpoint, so that a resumed run is the unbroken one.

    An example is known by its tokens and which text each is of: padding, batch and order do not matter. It holds at
    most `max_size` numbers (128 MiB of float32); when it is full, the oldest go. With several processes each keeps
    its own, and a checkpoint holds that of the first.
    """

    def __init__(self, max_size: int = MAX_NUMBERS) -> None:
        super().__init__()
        self.max_size, self.size = max_size, 0
        self.entries: dict[int, tuple[int, Tensor]] = {}

    def get_scores(
        self, batch: Batch, target: Tensor, epoch: int, lifetime: int, ask: Callable[[Batch, Tensor], Tensor]
    ) -> Tensor:
        """[B, L] What is known since at most `lifetime` epochs; of the other examples `ask` (their batch, target)."""

        def inside(batch: Batch, target: Tensor) -> list[Tensor]:
            return [own[there] for own, there in zip(ask(batch, target).cpu(), batch.content.cpu(), strict=True)]

        laid = torch.zeros(batch.content.shape, device=batch.device)
        laid[batch.content] = torch.cat(self.get_or_compute(batch, target, epoch, lifetime, inside)).to(batch.device)
        return laid

    def get_or_compute(
        self,
        batch: Batch,
        target: Tensor,
        epoch: int,
        lifetime: int,
        ask: Callable[[Batch, Tensor], Sequence[Tensor]],
    ) -> list[Tensor]:
        """B rows of numbers [n], on the CPU in float32; `ask` gives those of its batch that are not known."""
        names = list(hash_examples(batch, target))
        new = [
            row
            for row, name in enumerate(names)
            if name not in self.entries or epoch - self.entries[name][0] >= lifetime
        ]
        if new:
            rows = torch.tensor(new, device=batch.device)
            part, columns = batch.select(rows).trim_padding()
            counted = target.ndim > 1 and batch.response is None
            for row, found in zip(new, ask(part, target[rows] - columns.start * counted), strict=True):
                self._store(names[row], epoch, found.cpu().float())
        known = [self.entries[name][1] for name in names]
        while self.size > self.max_size:
            oldest = next(iter(self.entries))
            self.size -= len(self.entries.pop(oldest)[1])
        return known

    def _store(self, name: int, epoch: int, scores: Tensor) -> None:
        _, before = self.entries.pop(name, (0, scores[:0]))
        self.entries[name] = (epoch, scores)
        self.size += len(scores) - len(before)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        epochs, scores = zip(*self.entries.values(), strict=True) if self.entries else ((), ())
        destination[f"{prefix}names"] = torch.tensor(list(self.entries), dtype=torch.int64)
        destination[f"{prefix}epochs"] = torch.tensor(epochs, dtype=torch.int64)
        destination[f"{prefix}lengths"] = torch.tensor([len(each) for each in scores], dtype=torch.int64)
        destination[f"{prefix}scores"] = torch.cat(scores) if scores else torch.zeros(0)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        names, epochs, lengths, scores = (
            state_dict[f"{prefix}{name}"].cpu() for name in ("names", "epochs", "lengths", "scores")
        )
        parts = zip(epochs.tolist(), scores.split(lengths.tolist()), strict=True)
        self.entries = dict(zip(names.tolist(), parts, strict=True))
        self.size = len(scores)


def hash_examples(batch: Batch, target: Tensor) -> Iterator[int]:
    """63 bits for each example, by all of its tokens, and a target."""
    known = torch.stack([batch.inputs[name].cpu() for name in ("input_ids", "token_type_ids") if name in batch.inputs])
    for row, (attended, goal) in enumerate(zip(batch.attended.cpu(), target.tolist(), strict=True)):
        key = known[:, row, attended].numpy().tobytes() + f" {goal}".encode()
        yield int.from_bytes(blake2b(key, digest_size=8).digest()) >> 1
