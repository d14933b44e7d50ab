"""An explained model in the form that Captum expects: a module from input embeddings to the explained output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from expound.models import Batch, ExplainedModel


class ScoreOfEmbeddings(nn.Module):
    """The target's logit [m·B] of input embeddings [m·B, L, d]: m versions of B examples, version by version."""

    def __init__(self, model: ExplainedModel, batch: Batch, target: Tensor) -> None:
        super().__init__()
        self.model, self.batch, self.explained = model, batch, target

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the target's logit f_c of every version: [m·B]."""
        # Captum stacks copies of the whole batch, so row r belongs to example r mod B.
        rows = torch.arange(len(embeddings), device=embeddings.device) % len(self.batch)
        outputs = self.model(self.batch.select(rows), embeddings)
        return self.model.task.score(outputs.logits, self.explained[rows])
