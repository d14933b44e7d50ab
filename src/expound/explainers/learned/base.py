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

from expound.data.hub import find_folder
from expound.data.registry import BOOLEANS, parse_params
from expound.errors import ExpoundError
from expound.explainers.single_pass import SinglePass
from expound.models import Batch, ExplainedModel, Outputs

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
    def from_spec(cls, path: str, options: dict[str, Any], model: ExplainedModel | None = None) -> Self:
        """Return the explainer in a folder, or an untrained one for the model, on its device."""
        if path:
            return super().from_spec(path, options)
        given = cls.parse_options(options)
        if model is None:
            name = cls.card.name
            raise ExpoundError(f"{name}?untrained has the sizes of one model: pass model=, the model that it explains")
        del given["untrained"]
        return cls.for_model(model, **given).to(model.device)

    @classmethod
    def parse_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of `ID?untrained` as values of their types, `untrained` among them.

        Raises:
            ExpoundError: an unknown parameter, or a size, which the model determines; or not `untrained`.
        """
        name, rest = cls.card.name, dict(options)
        if not BOOLEANS.get(rest.pop("untrained", "false")):
            raise ExpoundError(
                f"{name} is learned: give the folder it was saved in, as {name}:PATH, or {name}?untrained to train it"
            )
        parsed = parse_params(f"{name}?untrained", cls.__init__, rest, fixed=("self", *SIZES))
        return {"untrained": True, **parsed}

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
