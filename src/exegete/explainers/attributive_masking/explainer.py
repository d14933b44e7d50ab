"""A model that learns which words another model's answer needs, and says so in one pass (AML)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from exegete.data.cards import MethodCard
from exegete.data.hub import find_folder
from exegete.data.provenance import to_json_value
from exegete.data.specs import parse_params
from exegete.errors import ExegeteError
from exegete.explainers.attributive_masking.losses import MaskWeights
from exegete.explainers.attributive_masking.modes import Mode, SoftMasking
from exegete.explainers.attributive_masking.refinement import Refinement, refine_maps
from exegete.explainers.attributive_masking.retokenization import Aggregation, RetokenizedBatch, Retokenizer
from exegete.explainers.base import SinglePass
from exegete.explainers.learned.base import CONFIG, WEIGHTS, load_config
from exegete.models import Batch, ExplainedModel, Outputs
from exegete.models.loading.checkpoint import describe_load_errors
from exegete.models.loading.digest import digest_weights
from exegete.models.passes.replace_inputs import replace_embeddings
from exegete.models.state.locks import get_lock
from exegete.models.state.restore import evaluation_mode

BACKBONE = "backbone"


@dataclass(frozen=True)
class MaskingSettings:
    """The settings of a masking model besides its backbone.

    `classes`: of the answers it explains. `mode`, `predictor`: see `SoftMasking`. `aggregation`: of the scores of
    several own tokens that share one of the explained model's. `weights`, `metric`, `learning_rate`: what it was
    trained with, which refinement goes on with; `nominal_steps`: steps after which refinement's learning rate would be
    0. `masked_width`: width of the explained model's embeddings.
    """

    classes: int
    mode: Mode = "mask"
    predictor: str | None = None
    aggregation: Aggregation = "max"
    weights: MaskWeights = field(default_factory=MaskWeights)
    metric: str = "aopc_comprehensiveness"
    learning_rate: float = 4e-5
    nominal_steps: int = 20
    masked_width: int = 0

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ExegeteError(f"attributive_masking explains classifiers, got {self.classes} class(es)")


class AttributiveMasking(nn.Module, SinglePass):
    """a = G(x, y): for every token how much of it the answer y needs, in [0, 1] (Barkan et al. 2024). Unsigned.

    An encoder reads the text in its own tokens, followed by one embedding that says what the explained model answered,
    z_0 + Σ_j y_j z_j; a head shared by all tokens, d → d (tanh) → 1 (sigmoid), gives the scores. Scores of tokens that
    another tokenizer cuts in another way move along the characters. y is the model's answer; where another class than
    the predicted one is explained, all of y is on that class.

    With `refine_steps` every example's own copy of G is trained further on that example alone, see `Refinement`.

    Args:
        backbone: a pretrained encoder without head; its input embeddings are not trained.
        tokenizer: its tokenizer.
        settings: the rest.
        refinement: what is done for each example at inference; nothing by default.
    """

    card: ClassVar = MethodCard(
        name="attributive_masking", family="learned", cost="F + G", paper="Barkan et al. 2024", learned=True,
        unit="weight of the mask, 0 to 1",
        equation=r"a = G(x, y) \in [0, 1]^L",
        use="Use it to explain many texts in one pass each, for any classifier, also a prompted one.",
        avoid="Do not use it for a few texts: training its masking model costs more than explaining them.",
    )  # fmt: skip

    def __init__(
        self, backbone: PreTrainedModel, tokenizer: Any, settings: MaskingSettings, refinement: Refinement | None = None
    ) -> None:
        super().__init__()
        self.settings, self.refinement = settings, refinement or Refinement()
        if getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None
        reader = ExplainedModel(backbone, tokenizer, "classification")
        if reader.is_decoder:
            raise ExegeteError(f"the masking model reads in both directions: {type(backbone).__name__} does not")
        reader.requested_max_length = reader.max_length - 1
        self.reader, self.retokenize = reader, Retokenizer(reader)
        hidden, spread = int(backbone.config.hidden_size), float(getattr(backbone.config, "initializer_range", 0.02))
        width = int(cast("nn.Embedding", reader.embedding).embedding_dim)
        self.answers = nn.Parameter(torch.randn(settings.classes + 1, width) * spread)
        dropout = float(getattr(backbone.config, "hidden_dropout_prob", 0.1))
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.masking = SoftMasking(settings.mode, settings.predictor, settings.masked_width)
        self.requires_grad_(True)
        self.embeddings.requires_grad_(False)

    @classmethod
    def for_model(
        cls, model: ExplainedModel, backbone: str | PreTrainedModel | None = None, tokenizer: Any = None, **choices: Any
    ) -> Self:
        """A new one for a model.

        Args:
            model: what it shall explain, a classifier of texts.
            backbone: the encoder it starts from, by folder, hub name or as a model (which is copied); default: a copy
                of the explained model without its head, where that is an encoder.
            tokenizer: with a backbone that is a model, its tokenizer.
            choices: see `MaskingSettings`.

        Raises:
            ExegeteError: a model that is no classifier of texts, or nothing to start from.
        """
        _require_classifier(model)
        if backbone is None:
            if model.is_decoder or hasattr(model.model, "get_base_model"):
                raise ExegeteError(
                    "decoders and adapted models are explained by an encoder: give one as backbone, as roberta-base"
                )
            backbone, tokenizer = model.model.base_model, model.tokenizer
        encoder, tokenizer = _load_encoder(backbone, tokenizer)
        settings = MaskingSettings(
            classes=len(model.labels), masked_width=int(cast("nn.Embedding", model.embedding).embedding_dim), **choices
        )
        made = cls(encoder.to(torch.float32), tokenizer, settings).to(model.device)
        made.masking.set_learned_embedding(model)
        return made.eval()

    @property
    def embeddings(self) -> nn.Module:
        """The part of the backbone that is never trained."""
        backbone = self.reader.model
        return cast("nn.Module", getattr(backbone, "embeddings", None) or backbone.get_input_embeddings())

    @property
    def params(self) -> dict[str, Any]:
        """Settings, refinement, and a digest of the weights."""
        settings: dict[str, Any] = to_json_value(asdict(self.settings))
        refinement = {name: value for name, value in asdict(self.refinement).items() if value is not None}
        return settings | refinement | {"digest": digest_weights(self)}

    def with_params(self, **given: Any) -> Self:
        """This one with other parameters of `Refinement`; texts are read as values."""
        self.refinement = replace(self.refinement, **parse_params(self.name, Refinement, given))
        return self

    # -- maps --------------------------------------------------------------------------------------------------------

    def forward(self, reading: RetokenizedBatch, answer: Tensor) -> Tensor:
        """Scores of its own tokens [B, L'] in [0, 1], 0 outside content.

        Args:
            reading: what `retokenize` made of a batch.
            answer: y [B, C], what the explained model answers.
        """
        own = reading.own
        hidden = self._encode(own, self.encode_answer(answer))[:, : own.length]
        scores: Tensor = self.head(hidden).squeeze(-1).sigmoid()
        return scores.masked_fill(~own.content, 0.0)

    def encode_answer(self, answer: Tensor) -> Tensor:
        """z_0 + Σ_j y_j z_j: [B, d]."""
        return self.answers[0] + answer.to(self.answers) @ self.answers[1:]

    def map_scores(self, reading: RetokenizedBatch, scores: Tensor) -> Tensor:
        """Its own tokens' scores as the explained model's: [B, L]."""
        return reading.map_scores(scores, self.settings.aggregation)

    def _encode(self, own: Batch, answer: Tensor) -> Tensor:
        """[B, L' + 1, d] The last layer, the answer's embedding standing behind each text's last token."""
        last = own.length - 1 - own.attended.long().flip(1).argmax(1, keepdim=True)
        inputs: dict[str, Tensor] = {}
        for name in ("input_ids", "token_type_ids"):
            if name in own.inputs and self.reader.accepts(name):
                fill = self.reader.pad_id if name == "input_ids" else 0
                values = nn.functional.pad(own.inputs[name], (0, 1), value=fill)
                inputs[name] = values.scatter(1, last + 1, own.inputs[name].gather(1, last))
        inputs["attention_mask"] = nn.functional.pad(own.attended, (0, 1)).scatter(1, last + 1, True).long()
        words = self.reader.embedding(inputs["input_ids"])
        place = (last + 1)[..., None].expand(-1, 1, words.shape[-1])
        words = words.scatter(1, place, answer[:, None].to(words.dtype))
        with replace_embeddings(self.reader.embedding, words):
            encoded: Tensor = self.reader.model(**inputs).last_hidden_state
        return encoded

    # -- as an explainer ---------------------------------------------------------------------------------------------

    def passes(self, length: int) -> tuple[float, float]:
        """One for the answer; with refinement two forward and two backward a step, and what the metric asks for."""
        steps = self.refinement.refine_steps
        return 1.0 + 2 * steps, 2.0 * steps

    @property
    def _needs_gradient(self) -> bool:
        return False

    def scores_from_outputs(
        self, model: ExplainedModel, batch: Batch, outputs: Outputs, target: Tensor, *, keep_graph: bool
    ) -> Tensor:
        """[B, L] from the model's answer.

        Raises:
            ExegeteError: a model with another task or another number of classes.
        """
        _require_classifier(model)
        if len(model.labels) != self.settings.classes:
            raise ExegeteError(f"it explains {self.settings.classes} classes, the model has {len(model.labels)}")
        self.to(batch.device)
        answer = answer_distribution(model, outputs.logits, target)
        with get_lock(self), evaluation_mode(self):
            if self.refinement.refine_steps:
                return refine_maps(self, model, batch, answer, target)
            reading = self.retokenize(model, batch)
            return self.map_scores(reading, self(reading, answer))

    # -- files -------------------------------------------------------------------------------------------------------

    def save_pretrained(self, path: str | Path) -> None:
        """Write weights, settings, backbone's configuration and tokenizer into a folder; `from_pretrained` reads it."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.reader.config.save_pretrained(folder / BACKBONE)
        self.reader.tokenizer.save_pretrained(folder / BACKBONE)
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / WEIGHTS)
        content = {"explainer": self.name} | to_json_value(asdict(self.settings))
        (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """The explainer saved in a folder or a repository of the hub.

        Raises:
            ExegeteError: a folder without its files, of another explainer, or with weights of another size.
        """
        folder = find_folder(path)
        content = load_config(cls.card.name, folder)
        try:
            config = AutoConfig.from_pretrained(folder / BACKBONE)
            tokenizer = AutoTokenizer.from_pretrained(folder / BACKBONE)
            made = cls(AutoModel.from_config(config), tokenizer, _read_settings(content))
            made.load_state_dict(load_file(folder / WEIGHTS))
        except (TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ExegeteError(f"{folder} holds no {cls.card.name} that can be loaded: {reason}") from error
        return made.eval()


def answer_distribution(model: ExplainedModel, logits: Tensor, target: Tensor) -> Tensor:
    """Y [B, C]: the model's probabilities, or all on the target where that is not what the model predicts."""
    probabilities = model.task.probabilities(logits.detach())
    chosen = nn.functional.one_hot(target, probabilities.shape[-1]).to(probabilities)
    predicted = probabilities.argmax(-1) == target
    return torch.where(predicted[:, None], probabilities, chosen)


def _read_settings(content: Mapping[str, Any]) -> MaskingSettings:
    names = {each.name for each in fields(MaskingSettings)}
    given = {name: value for name, value in content.items() if name in names}
    return MaskingSettings(**(given | {"weights": MaskWeights(**content["weights"])}))


def _require_classifier(model: ExplainedModel) -> None:
    if model.task.name != "classification" or model.modality != "text":
        kind = "images" if model.modality == "image" else f"a {model.task.name.replace('_', '-')} task"
        raise ExegeteError(f"attributive_masking explains classifiers of texts, not {kind}")


def _load_encoder(backbone: str | PreTrainedModel, tokenizer: Any) -> tuple[PreTrainedModel, Any]:
    """A fresh encoder with its tokenizer."""
    if isinstance(backbone, str):
        with describe_load_errors(backbone, "encoder"):
            encoder = AutoModel.from_pretrained(backbone, use_safetensors=True)
            return encoder, tokenizer or AutoTokenizer.from_pretrained(backbone)
    if tokenizer is None:
        raise ExegeteError("a backbone that is a model needs its tokenizer beside it")
    return deepcopy(backbone), tokenizer
