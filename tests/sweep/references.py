"""Slow scores of one example without padding, computed from the Hugging Face model alone."""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from sweep.held import Held
from sweep.own_models import OWN_ATTENTION

MASK = 2
"""The token that replaces a word: tiny models have no mask or unknown token, so it is their end-of-text token."""

WITH_SINKS = "with_sinks"
SCALED_BY_SINKS = ("granite_swa", "granitemoe_swa")
"""Types whose own maps sum to 1, since the share that sinks take is multiplied into the mixed values afterwards."""


def attend_with_sinks(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, s_aux: Any, **_: Any
) -> Any:
    """Attention by its definition: a sink is one more logit per head, whose share reaches no position."""
    groups = query.shape[1] // key.shape[1]
    key, value = (heads.repeat_interleave(groups, dim=1) for heads in (key, value))
    logits = query @ key.transpose(-1, -2) * scaling
    logits = logits if attention_mask is None else logits + attention_mask
    weights = torch.cat([logits, s_aux.view(-1, 1, 1).expand_as(logits[..., :1])], -1).softmax(-1)[..., :-1]
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(WITH_SINKS, attend_with_sinks)
AttentionMaskInterface.register(WITH_SINKS, eager_mask)


class NoReference(Exception):  # noqa: N818
    """The model does not say what the reference needs, such as its attention maps."""


class Reference:
    """The raw model's answers to one example: ids [L] or pixels, read where its head reads.

    Args:
        raw: the Hugging Face model.
        head: the suffix of its class.
        ids: the example's ids (of a decoder alone: prompt and response); pixels [1, 3, h, w] of images.
        target: the explained class or word.
        place: the position of a head over tokens, or the number of response tokens.
        decoder: ids that an encoder-decoder's decoder reads: start and response.
    """

    def __init__(self, raw: Any, head: str, ids: Any, target: int, place: int = 0, decoder: Any = None) -> None:
        self.raw, self.head, self.ids, self.target, self.place, self.decoder = raw, head, ids, target, place, decoder
        self.mask = MASK
        self.is_generation = head in ("CausalLM", "Seq2SeqLM")

    def run(self, ids: Any = None, rows: int = 1, **options: Any) -> Any:
        ids = self.ids if ids is None else ids
        if self.head == "ImageClassification":
            return self.raw(pixel_values=ids, return_dict=True, **options)
        ids = ids.expand(rows, -1) if ids.ndim == 1 else ids
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.decoder is not None:
            inputs["decoder_input_ids"] = self.decoder.expand(rows, -1)
        if self.head in ("CausalLM", "Seq2SeqLM"):
            options["use_cache"] = False
        return self.raw(**inputs, return_dict=True, **options)

    def score(self, output: Any, *, probability: bool = False, ids: Any = None, place: int | None = None) -> Any:
        """The explained number: of classes the logit or probability, of generated text the log-probability."""
        ids = self.ids if ids is None else ids
        if self.is_generation:
            said = ids if self.decoder is None else self.decoder
            logits = output.logits[0, -self.place - 1 : -1]
            return logits.log_softmax(-1).gather(1, said[-self.place :, None]).sum()
        logits = output.logits[0]
        if self.head in ("TokenClassification", "MaskedLM"):
            logits = logits[self.place if place is None else place]
        return (logits.softmax(-1) if probability else logits)[self.target]

    def find_readout(self) -> Any:
        """Weights [L] of the positions at which the answer is read; NoReference if its gradient does not say it."""
        if self.is_generation:
            weights = torch.zeros(len(self.ids if self.decoder is None else self.decoder), dtype=torch.float64)
            weights[-self.place - 1 : -1] = 1 / self.place
            return weights
        if self.head in ("TokenClassification", "MaskedLM"):
            weights = torch.zeros(len(self.ids), dtype=torch.float64)
            weights[self.place] = 1
            return weights
        states: list[Any] = []

        def keep(module: Any, inputs: Any, output: Any) -> None:
            states.append(output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None))

        with self.raw.base_model.register_forward_hook(keep):
            score = self.score(self.run())
        if not states or states[-1] is None or states[-1].ndim != 3:
            raise NoReference("no last hidden state")
        (slope,) = torch.autograd.grad(score, states[-1], allow_unused=True)
        if slope is None:
            raise NoReference("last hidden state unused")
        rows = slope[0]
        read = rows.abs().amax(1) > 1e-12 * rows.abs().amax()
        used = rows[read]
        if not torch.allclose(used, used[:1].expand_as(used), rtol=1e-6, atol=1e-12):
            raise NoReference("read at several positions in different ways")
        return read.double() / read.sum()

    @property
    def table(self) -> Any:
        """The module of input embeddings."""
        return (self.raw if self.decoder is None else self.raw.get_encoder()).get_input_embeddings()

    @cached_property
    def embeddings(self) -> Any:
        """The embeddings [1, L, d] of the example."""
        seen: list[Any] = []
        # GIT adds positions in place.
        hook = self.table.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
        with hook, torch.no_grad():
            self.run()
        return seen[0]

    def run_at(self, points: Any) -> Any:
        """The output for embeddings [m, L, d] of one's own."""
        seen: list[Any] = []

        def replace(module: Any, inputs: Any, output: Any) -> Any:
            seen.append(module)
            # No leaf allows what is done in place.
            return points.clone() if len(seen) == 1 else None

        with self.table.register_forward_hook(replace):
            return self.run(rows=len(points))

    def gradient(self, point: Any = None) -> tuple[Any, Any]:
        """Embeddings [L, d], by default the example's own, and the score's gradient there."""
        point = (self.embeddings if point is None else point).clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.score(self.run_at(point)), point)
        return point.detach()[0], slope[0]

    def copy(self) -> Reference:
        """A reference with a copy of the model, whose operations can be caught, and weights without gradients."""
        raw = deepcopy(self.raw).requires_grad_(False)
        if raw.config._attn_implementation != OWN_ATTENTION:
            raw.set_attn_implementation("eager")
        for parent in list(raw.modules()):
            for name, child in list(parent.named_children()):
                # This activation is written out in several functions.
                if type(child).__name__ == "NewGELUActivation":
                    setattr(parent, name, nn.GELU(approximate="tanh"))
        return type(self)(raw, self.head, self.ids, self.target, self.place)

    def hold_factors(self, places: list[int], start: str) -> Any:
        """The change of the linearized network's score with each embedding, or each state that enters its layers."""

        def choose(raw: Any) -> Any:
            first = next(module for module in raw.modules() if isinstance(module, nn.ModuleList))[0]
            return raw.get_input_embeddings() if start == "embeddings" else first

        def select(place: int) -> Any:
            return lambda at: torch.zeros_like(at).index_copy(1, torch.tensor([place]), at[:, [place]])

        return torch.stack(self.differ(choose, list(map(select, places)), at_output=start == "embeddings"))

    def differ(
        self, choose: Any, directions: list[Any], *, at_output: bool = False, call: int = 0, reads_layer: bool = False
    ) -> list[Any]:
        """How the score, or the module's output, changes if a module's output or input moves in some directions.

        All factors that the definition holds keep their values, so the network is affine: a difference is exact.
        `choose`: from the model to the module, which moves in this `call`; directions are functions of what is moved.
        """
        linearized = self.copy()
        module = choose(linearized.raw)
        held, steps, states, outputs = Held(), [torch.zeros(())], [], []

        def move(x: Any) -> Any:
            states.append(x.detach())
            return (x.detach() + steps[-1]).requires_grad_().clone() if len(states) == call + 1 else x

        def move_input(module: Any, inputs: Any, kwargs: Any) -> Any:
            if inputs:
                return (move(inputs[0]), *inputs[1:]), kwargs
            return inputs, {**kwargs, "hidden_states": move(kwargs["hidden_states"])}

        def keep(module: Any, inputs: Any, output: Any) -> Any:
            outputs.append((output if isinstance(output, torch.Tensor) else output[0]).detach())
            return move(output) if at_output else None

        def run(step: Any) -> Any:
            steps.append(step)
            states.clear()
            outputs.clear()
            held.place = 0 if held.kept else None
            with held:
                score = linearized.score(linearized.run()).detach()
            return outputs[call][0] if reads_layer else score

        with ExitStack() as scope:
            scope.enter_context(module.register_forward_hook(keep))
            if not at_output:
                scope.enter_context(module.register_forward_pre_hook(move_input, with_kwargs=True))
            whole, changes = run(torch.zeros(())), []
            at = states[call]
            for make in directions:
                up, down = run(make(at)), run(-make(at))
                # Some norms compute in float32.
                if (up + down - 2 * whole).abs().max() > 1e-5 * (up.abs() + down.abs() + whole.abs()).max():
                    raise NoReference("the linearized network is not affine")
                changes.append((up - down) / 2)
        return changes

    @torch.no_grad()
    def answer(self, gone: Any, perturbation: str) -> Any:
        """The score (of classes the probability) without some positions, which are removed or masked."""
        ids, place = self.ids.clone(), self.place
        if perturbation == "remove":
            stays = torch.ones_like(ids, dtype=torch.bool)
            stays[list(gone)] = False
            ids = ids[stays]
            if not self.is_generation:
                place -= sum(position < self.place for position in gone)
        else:
            ids[list(gone)] = self.mask
        return self.score(self.run(ids), probability=True, ids=ids, place=place)

    def occlude(self, positions: list[int], perturbation: str) -> Any:
        """Fall of the score for each position that is removed, or replaced by the mask."""
        whole = self.answer([], perturbation)
        return torch.stack([whole - self.answer([position], perturbation) for position in positions])

    def attention(self) -> tuple[list[Any], Any]:
        """Maps [H, L, L] of every layer, and the score; NoReference unless each layer has one whose rows sum to 1."""
        before = self.raw.config._attn_implementation
        try:
            has_own = self.raw.config.model_type in SCALED_BY_SINKS
            self.raw.set_attn_implementation(WITH_SINKS if has_own else "eager")
            output = self.run(output_attentions=True)
        except Exception as error:
            raise NoReference(f"no eager attention: {error}") from error
        finally:
            self.raw.set_attn_implementation(before)
        maps = output.get("attentions")
        length = len(self.ids) if self.ids.ndim == 1 else None
        count = self.raw.config.get_text_config().num_hidden_layers
        if maps is None or len(maps) != count or any(layer is None or layer.ndim != 4 for layer in maps):
            raise NoReference("not an attention map for each layer")
        for layer in maps:
            square = layer.shape[-1] == layer.shape[-2] and (length is None or layer.shape[-1] == length)
            if not square:
                raise NoReference(f"maps of shape {list(layer.shape)}")
        return list(maps), self.score(output)

    def by_attention(self, method: str) -> Any:
        """Scores [L] of a method of attention maps."""
        readout = self.find_readout()
        maps, score = self.attention()
        if len(readout) != maps[-1].shape[-1]:
            raise NoReference("maps do not reach the readout")
        if method in ("generic_attention", "scaled_attention"):
            slopes = torch.autograd.grad(score, maps, allow_unused=True)
            if any(slope is None for slope in slopes):
                raise NoReference("maps that the answer does not depend on")
        maps = [layer[0] for layer in maps]
        if method == "attention_last":
            return readout @ maps[-1].mean(0)
        if method == "attention_all":
            # Layers may have different numbers of heads.
            return readout @ torch.stack([layer.mean(0) for layer in maps]).mean(0)
        if method == "scaled_attention":
            return (readout @ maps[-1].mean(0)) * (readout @ slopes[-1][0].mean(0))
        one = torch.eye(len(readout), dtype=torch.float64)
        whole = one
        for number, layer in enumerate(maps):
            if method == "attention_rollout":
                mixture = layer.mean(0)
                mixture = (mixture + one) / (mixture.sum(-1, keepdim=True) + 1)
                whole = mixture @ whole
            else:
                whole = (one + (slopes[number][0] * layer).clamp(min=0).mean(0)) @ whole
        if method == "generic_attention":
            whole = whole - torch.diag(torch.diag(whole))
        return readout @ whole
