"""The base of explainers with parameters: how they are made for a model, saved and loaded."""

from __future__ import annotations

import json
from abc import abstractmethod
from inspect import signature
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from exegete.data.hub import find_folder
from exegete.errors import ExegeteError
from exegete.explainers.base import SinglePass
from exegete.models import Batch, ExplainedModel, Outputs

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


class LearnedExplainer(nn.Module, SinglePass):
    """An explainer with coefficients for the parts of a model; a module, trained like any other."""

    @classmethod
    @abstractmethod
    def for_model(cls, model: ExplainedModel, **options: Any) -> Self:
        """The explainer for a model with all coefficients alike; `options` as in the class."""

    @property
    def params(self) -> dict[str, Any]:
        """The arguments the explainer was made with, by name: attributes that are called alike; no coefficients."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def save_pretrained(self, path: str | Path) -> None:
        """Write the coefficients and what the explainer is made with into a folder; `from_pretrained` reads it."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / WEIGHTS)
        (folder / CONFIG).write_text(json.dumps({"explainer": self.name} | self.params, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """The explainer saved in a folder or a repository of the hub, or beside the model it was trained with there.

        Raises:
            ExegeteError: a folder without the two files, of another explainer, or with coefficients of another size.
        """
        root = find_folder(path)
        beside = root / cls.card.name
        folder = beside if (beside / CONFIG).is_file() else root
        params = load_config(cls.card.name, folder)
        try:
            explainer = cls(**params)
            explainer.load_state_dict(load_file(folder / WEIGHTS), assign=True)
        except (TypeError, RuntimeError, OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ExegeteError(f"{folder} holds no {cls.card.name} that can be loaded: {reason}") from error
        return explainer


class FittedExplainer(LearnedExplainer):
    """One whose scores are linear in its `coefficients`: `exegete train at2` fits them to the effects of ablations."""

    coefficients: Tensor

    @abstractmethod
    def features(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, unit: Tensor) -> Tensor:
        """φ [B, U, F] The number that each coefficient is multiplied by in the scores of units [B, L], -1 for none.

        Coefficients are in the order of `coefficients.flatten()`; `outputs` hold what `capture` asks for.
        """

    def set_coefficients(self, found: Tensor) -> None:
        """Replaces the coefficients by `found` [F]."""
        self.coefficients.data = found.view_as(self.coefficients).to(self.coefficients)


def load_config(name: str, folder: Path) -> dict[str, Any]:
    """The configuration of a learned method in a folder. Raises ExegeteError where there is none of that method."""
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise ExegeteError(f"expected a folder with a saved {name}, got {str(folder)!r}: {error}") from error
    found = config.pop("explainer", None) if isinstance(config, dict) else None
    if found != name:
        raise ExegeteError(f"expected a saved {name} in {folder}, got {found or 'something else'}")
    return dict(config)
