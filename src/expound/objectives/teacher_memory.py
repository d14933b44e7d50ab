"""A memory of numbers computed for each example, such as a teacher's scores, that are kept for some epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from expound.models import Batch

MAX_NUMBERS = 1 << 25


class TeacherMemory(nn.Module):
    """A cache of teacher scores per example and target. It is saved in checkpoints, so that a resumed run is the same.

    An example is identified by its tokens and their token types: padding, batch and order do not matter. The memory
    holds at most `max_size` numbers (by default 128 MiB of float32); beyond that, the oldest entries are dropped. Each
    process has its own memory, and a checkpoint contains the first process's memory.
    """

    def __init__(self, max_size: int = MAX_NUMBERS) -> None:
        super().__init__()
        self.max_size, self.size = max_size, 0
        self.entries: dict[int, tuple[int, Tensor]] = {}

    def get_scores(
        self, batch: Batch, target: Tensor, epoch: int, lifetime: int, compute: Callable[[Batch, Tensor], Tensor]
    ) -> Tensor:
        """Return scores [B, L], 0 outside content; `compute` gives them for the examples that are new or outdated."""

        def compute_content(batch: Batch, target: Tensor) -> list[Tensor]:
            pairs = zip(compute(batch, target).cpu(), batch.content.cpu(), strict=True)
            return [row[content] for row, content in pairs]

        scores = torch.zeros(batch.content.shape, device=batch.device)
        rows = self.get_or_compute(batch, target, epoch, lifetime, compute_content)
        scores[batch.content] = torch.cat(rows).to(batch.device)
        return scores

    def get_or_compute(
        self,
        batch: Batch,
        target: Tensor,
        epoch: int,
        lifetime: int,
        compute: Callable[[Batch, Tensor], Sequence[Tensor]],
    ) -> list[Tensor]:
        """Return one row of numbers [n] per example, on the CPU in float32.

        Rows younger than `lifetime` epochs come from the memory. `compute` is called once, with the batch and target of
        the other examples.
        """
        names = list(hash_examples(batch, target))
        new = []
        for row, name in enumerate(names):
            if name not in self.entries or epoch - self.entries[name][0] >= lifetime:
                new.append(row)
        if new:
            rows = torch.tensor(new, device=batch.device)
            selected, columns = batch.select(rows).trim_padding()
            # a span [B, 2] is in columns of the batch: removed padding on the left moves it; spans of a response do not
            shift = columns.start if target.ndim > 1 and batch.response is None else 0
            for row, numbers in zip(new, compute(selected, target[rows] - shift), strict=True):
                self._store(names[row], epoch, numbers.cpu().float())
        result = [self.entries[name][1] for name in names]
        # after the result is read: a batch larger than the memory still gets all of its rows
        while self.size > self.max_size:
            oldest = next(iter(self.entries))
            self.size -= len(self.entries.pop(oldest)[1])
        return result

    def _store(self, name: int, epoch: int, numbers: Tensor) -> None:
        # popped first, so that a renewed entry is the youngest in the dict's order
        _, before = self.entries.pop(name, (0, numbers[:0]))
        self.entries[name] = (epoch, numbers)
        self.size += len(numbers) - len(before)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        epochs, scores = zip(*self.entries.values(), strict=True) if self.entries else ((), ())
        destination[f"{prefix}names"] = torch.tensor(list(self.entries), dtype=torch.int64)
        destination[f"{prefix}epochs"] = torch.tensor(epochs, dtype=torch.int64)
        destination[f"{prefix}lengths"] = torch.tensor([len(row) for row in scores], dtype=torch.int64)
        destination[f"{prefix}scores"] = torch.cat(scores) if scores else torch.zeros(0)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        scores = state_dict[f"{prefix}scores"].cpu()
        parts = scores.split(state_dict[f"{prefix}lengths"].tolist())
        names, epochs = state_dict[f"{prefix}names"].tolist(), state_dict[f"{prefix}epochs"].tolist()
        self.entries = {}
        for name, epoch, part in zip(names, epochs, parts, strict=True):
            self.entries[name] = epoch, part
        self.size = len(scores)


def hash_examples(batch: Batch, target: Tensor) -> Iterator[int]:
    """Yield a hash of 63 bits for each example, of all its tokens and its target."""
    inputs = torch.stack([batch.inputs[name].cpu() for name in ("input_ids", "token_type_ids") if name in batch.inputs])
    for row, (attended, example_target) in enumerate(zip(batch.attended.cpu(), target.tolist(), strict=True)):
        key = inputs[:, row, attended].numpy().tobytes() + f" {example_target}".encode()
        yield int.from_bytes(blake2b(key, digest_size=8).digest()) >> 1
