"""The base of explainers with parameters: how they are made for a model, saved and loaded."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from expound.data.cards import MethodCard
from expound.data.hub import find_folder
from expound.data.registry import parse_params
from expound.errors import ExpoundError
from expound.explainers.base import Explainer, TokenScores
from expound.explainers.single_pass import SinglePass
from expound.models import Batch, Capture, ExplainedModel, Outputs

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SIZES = ("n_layers", "n_heads", "head_dim", "width")


class LearnedExplainer(nn.Module, SinglePass):
    """An explainer with coefficients for the parts of a model; a module that is trained like any other."""

    @classmethod
    @abstractmethod
    def for_model(cls, model: ExplainedModel, **options: Any) -> Self:
        """Return the untrained explainer for a model, with equal coefficients; `options` as in the class."""

    @classmethod
    def untrained(cls, options: Mapping[str, Any], model: ExplainedModel | None = None) -> Explainer:
        """Return this method before any training, with the sizes of the model, or of whichever one it explains."""
        untrained = UntrainedExplainer(cls, options)
        return untrained if model is None else untrained.for_model(model)

    @property
    def params(self) -> dict[str, Any]:
        """The constructor's arguments by name, without coefficients; each is an attribute of the same name."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def save_pretrained(self, path: str | Path) -> None:
        """Write the coefficients and the constructor's arguments into a folder that `from_pretrained` reads."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / WEIGHTS)
        (folder / CONFIG).write_text(json.dumps({"explainer": self.name} | self.params, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Load the explainer from a folder or a hub repository, or from beside the model that it was trained with.

        Raises:
            ExpoundError: a file is missing, or belongs to another explainer, or the coefficients have another size.
        """
        root = find_folder(path)
        beside = root / cls.card.name
        folder = beside if (beside / CONFIG).is_file() else root
        params = load_config(cls.card.name, folder)
        try:
            explainer = cls(**params)
            # `assign` keeps the precision in which the coefficients were saved.
            explainer.load_state_dict(load_file(folder / WEIGHTS), assign=True)
        except (TypeError, RuntimeError, OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ExpoundError(f"{folder} holds no {cls.card.name} that can be loaded: {reason}") from error
        return explainer


@dataclass(frozen=True)
class UntrainedExplainer(SinglePass):
    """The method of the spec `ID?untrained`: a learned explainer with equal coefficients, a baseline for training.

    Args:
        explainer_class: the class of the learned explainer.
        options: arguments of the class, as values or text, without sizes, which the explained model determines.
    """

    explainer_class: type[LearnedExplainer]
    options: Mapping[str, Any] = field(default_factory=dict)
    card: ClassVar = MethodCard(name="untrained", family="learned", differentiable=True, cost="F")

    def __post_init__(self) -> None:
        name, make = f"{self.name}?untrained", self.explainer_class.__init__
        object.__setattr__(self, "options", parse_params(name, make, dict(self.options), fixed=("self", *SIZES)))
        # Invalid option values raise here, not at the first explanation.
        _ = self._template

    @property
    def _template(self) -> LearnedExplainer:
        """An instance with all sizes 1, for what does not depend on sizes."""
        parameters = signature(self.explainer_class).parameters
        sizes: dict[str, Any] = {name: 1 for name in SIZES if name in parameters}
        return self.explainer_class(**sizes, **self.options)

    @property
    def name(self) -> str:
        """The id of the learned explainer."""
        return self.explainer_class.card.name

    @property
    def signed(self) -> bool:
        """Whether negative scores mean evidence against the target."""
        return self.explainer_class.card.signed

    @property
    def params(self) -> dict[str, Any]:
        """The options, and `untrained`."""
        return {"untrained": True, **self.options}

    @property
    def capture(self) -> Capture:
        """The quantities that the learned explainer needs."""
        return self._template.capture

    def for_model(self, model: ExplainedModel) -> LearnedExplainer:
        """Return the untrained learned explainer for a model, on its device."""
        return self.explainer_class.for_model(model, **self.options).to(model.device)

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor | TokenScores:
        """Return the scores [B, L] of the untrained explainer for this model."""
        return self.for_model(model).scores_from_outputs(model, batch, outputs, target, gradients)


class FittedExplainer(LearnedExplainer):
    """An explainer whose scores are linear in its `coefficients`, which `expound train at2` fits to ablations."""

    coefficients: Tensor

    @abstractmethod
    def features(self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, unit: Tensor) -> Tensor:
        """Return the factor of each coefficient in the scores of units: φ [B, U, F].

        Coefficients are in the order of `coefficients.flatten()`. `unit` [B, L] is the unit of each position, or −1.
        `outputs` contain what `capture` asks for.
        """

    def set_coefficients(self, values: Tensor) -> None:
        """Replace the coefficients by `values` [F]."""
        self.coefficients.data = values.view_as(self.coefficients).to(self.coefficients)


def load_config(name: str, folder: Path) -> dict[str, Any]:
    """Return the configuration of a learned method in a folder. Raises ExpoundError if it has no such method."""
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise ExpoundError(f"expected a folder with a saved {name}, got {str(folder)!r}: {error}") from error
    saved_name = config.pop("explainer", None) if isinstance(config, dict) else None
    if saved_name != name:
        raise ExpoundError(f"expected a saved {name} in {folder}, got {saved_name or 'something else'}")
    return dict(config)
