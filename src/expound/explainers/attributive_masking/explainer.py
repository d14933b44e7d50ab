"""Attributive masking (AML): a model that learns which words the prediction of another model needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from expound.data.cards import MethodCard
from expound.data.hub import find_folder
from expound.data.provenance import to_json_value
from expound.data.registry import parse_params
from expound.errors import ExpoundError
from expound.explainers.attributive_masking.losses import MaskWeights
from expound.explainers.attributive_masking.network import MaskingNetwork
from expound.explainers.attributive_masking.refinement import refine_maps
from expound.explainers.attributive_masking.settings import MaskingSettings, Refinement
from expound.explainers.learned.base import CONFIG, WEIGHTS, load_config
from expound.explainers.single_pass import SinglePass
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.loading.adapters import read_config
from expound.models.loading.checkpoint import describe_load_errors, digest_weights
from expound.models.state import evaluation_mode, get_lock

BACKBONE = "backbone"


class AttributiveMasking(MaskingNetwork, SinglePass):
    """Scores a = G(x, y) of how much the prediction y needs each token, in [0, 1] (Barkan et al. 2024). Unsigned.

    The network G reads the text in its own tokens; scores are transferred along the characters if the explained model
    has another tokenizer. y is the model's prediction; for another class than the predicted one, y is 1 for that class.
    With `refine_steps`, a copy of G is trained further on each example alone, see `Refinement`.

    Arguments: see `MaskingNetwork`.
    """

    card: ClassVar = MethodCard(
        name="attributive_masking", family="learned", cost="F + G", paper="Barkan et al. 2024", learned=True,
        unit="weight of the mask, 0 to 1",
        equation=r"a = G(x, y) \in [0, 1]^L",
        use="Use it to explain many texts in one pass each, for any classifier, also a prompted one.",
        avoid="Do not use it for a few texts: training its masking model costs more than explaining them.",
    )  # fmt: skip

    @classmethod
    def for_model(
        cls, model: ExplainedModel, backbone: str | PreTrainedModel | None = None, tokenizer: Any = None, **choices: Any
    ) -> Self:
        """Return a new, untrained masking model for a model.

        Args:
            model: the model to explain, a text classifier.
            backbone: the encoder to start from: a folder, a hub name, or a model (which is copied); default: a copy of
                the explained model without its head, if it is an encoder.
            tokenizer: the tokenizer of a backbone that is given as a model.
            choices: see `MaskingSettings`.

        Raises:
            ExpoundError: a model that is no text classifier, or no backbone.
        """
        _require_classifier(model)
        if backbone is None:
            if model.is_decoder or hasattr(model.model, "get_base_model"):
                raise ExpoundError(
                    "decoders and adapted models are explained by an encoder: give its folder or hub name as backbone "
                    "(--backbone), such as FacebookAI/roberta-base"
                )
            backbone, tokenizer = model.model.base_model, model.tokenizer
        encoder, tokenizer = _load_encoder(backbone, tokenizer)
        settings = MaskingSettings(
            classes=len(model.labels), masked_width=int(cast("nn.Embedding", model.embedding).embedding_dim), **choices
        )
        # float32: small updates of half-precision weights would round to 0.
        masking = cls(encoder.to(torch.float32), tokenizer, settings).to(model.device)
        masking.masking.set_learned_embedding(model)
        return masking.eval()

    @property
    def params(self) -> dict[str, Any]:
        """Settings, refinement, and a digest of the weights."""
        settings: dict[str, Any] = to_json_value(asdict(self.settings))
        refinement = {name: value for name, value in asdict(self.refinement).items() if value is not None}
        return settings | refinement | {"digest": digest_weights(self)}

    def with_params(self, **params: Any) -> Self:
        """Set parameters of `Refinement`, given as values or text, and return the explainer itself."""
        self.refinement = replace(self.refinement, **parse_params(self.name, Refinement, params))
        return self

    def passes(self, length: int) -> tuple[float, float]:
        """Return the number of passes: one, and with refinement two forward and two backward passes per step."""
        steps = self.refinement.refine_steps
        return 1.0 + 2 * steps, 2.0 * steps

    @cached_property
    def needs_gradient(self) -> bool:
        """False: the method's pass of the explained model needs no gradient."""
        # The backward passes of a refinement are its own; the pass of the explained model needs no graph.
        return False

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, gradients: Sequence[Tensor]
    ) -> Tensor:
        """Return scores [B, L] for the model's prediction.

        Raises:
            ExpoundError: a model with another task or another number of classes.
        """
        _require_classifier(model)
        if len(model.labels) != self.settings.classes:
            raise ExpoundError(
                f"this masking model explains {self.settings.classes} classes, the model has {len(model.labels)}"
            )
        self.to(batch.device)
        answer = answer_distribution(model, outputs.logits, target)
        # One thread at a time: modes and refinement change the module.
        with get_lock(self), evaluation_mode(self):
            if self.refinement.refine_steps:
                return refine_maps(self, model, batch, answer, target)
            retokenized = self.retokenize(model, batch)
            return self.map_scores(retokenized, self(retokenized, answer))

    def save_pretrained(self, path: str | Path) -> None:
        """Write weights, settings, and the backbone's configuration and tokenizer into a folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.reader.config.save_pretrained(folder / BACKBONE)
        self.reader.tokenizer.save_pretrained(folder / BACKBONE)
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / WEIGHTS)
        content = {"explainer": self.name} | to_json_value(asdict(self.settings))
        (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Load the explainer from a folder or a hub repository.

        Raises:
            ExpoundError: a file is missing, or belongs to another explainer, or the weights have another size.
        """
        folder = find_folder(path)
        content = load_config(cls.card.name, folder)
        try:
            config = read_config(str(folder / BACKBONE))
            tokenizer = AutoTokenizer.from_pretrained(folder / BACKBONE)
            masking = cls(AutoModel.from_config(config), tokenizer, _read_settings(content))
            masking.load_state_dict(load_file(folder / WEIGHTS))
        except (TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ExpoundError(f"{folder} holds no {cls.card.name} that can be loaded: {reason}") from error
        return masking.eval()


def answer_distribution(model: ExplainedModel, logits: Tensor, target: Tensor) -> Tensor:
    """Return y [B, C]: the model's probabilities, or 1 for the target if the model predicts another class."""
    probabilities = model.task.probabilities(logits.detach())
    target_only = nn.functional.one_hot(target, probabilities.shape[-1]).to(probabilities)
    is_predicted = probabilities.argmax(-1) == target
    return torch.where(is_predicted[:, None], probabilities, target_only)


def _read_settings(content: Mapping[str, Any]) -> MaskingSettings:
    names = {item.name for item in fields(MaskingSettings)}
    values = {name: value for name, value in content.items() if name in names}
    return MaskingSettings(**(values | {"weights": MaskWeights(**content["weights"])}))


def _require_classifier(model: ExplainedModel) -> None:
    if not model.task.supports("classes") or model.modality != "text":
        other = "images" if model.modality == "image" else f"a {model.task.name.replace('_', '-')} task"
        raise ExpoundError(f"attributive_masking explains classifiers of texts, not {other}")


def _load_encoder(backbone: str | PreTrainedModel, tokenizer: Any) -> tuple[PreTrainedModel, Any]:
    """Return a new encoder with its tokenizer."""
    if isinstance(backbone, str):
        with describe_load_errors(backbone, "encoder"):
            config = read_config(backbone)
            encoder = AutoModel.from_pretrained(backbone, config=config, use_safetensors=True)
            return encoder, tokenizer or AutoTokenizer.from_pretrained(backbone)
    if tokenizer is None:
        raise ExpoundError("a backbone that is given as a model needs its tokenizer too")
    return deepcopy(backbone), tokenizer
