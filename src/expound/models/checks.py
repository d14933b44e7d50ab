"""Checks of a model against what methods assume about it, each run once per loaded model on one example.

A check returns the reason why its assumption fails, or an empty string.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.models.batch import PER_POSITION, Batch, Capture, find_last_tokens
from expound.models.hugging_face import MOST, TOLERANCE, Probe, are_close, get_tolerance, is_exact, remember
from expound.models.layers.architecture import get_base_model, unwrap_adapter
from expound.models.layers.backward_rules import prove_rules
from expound.models.layers.held_factors import LINEAR_RULES, DerivativeRules
from expound.models.layers.scalar_mix import has_scalar_mix

NOT_A_SOFTMAX = "an explicit softmax gives other predictions than its attention does"
COPIES = 8
"""Copies of an example over which differences are averaged in 16 bits."""

Readout = Literal["first", "last", "all", "content"]
"""Positions at which a head for the whole text reads: one of them, or the mean over several."""


def find_readout(model: Any, batch: Batch) -> Readout | None:
    """Return which positions the head for the whole input reads; None for any other readout."""
    readout: Readout | None = take_slopes(model, Probe(model, batch))[1]
    return readout


def take_slopes(model: Any, probe: Probe) -> tuple[str, Readout | None]:
    """Return why gradients cannot be taken, or an empty string, and which positions the head reads."""
    found: tuple[str, Readout | None] = remember(model, "slopes" + probe.kind, lambda: _measure_slopes(model, probe))
    return found


def _measure_slopes(model: Any, probe: Probe) -> tuple[str, Readout | None]:
    states: list[Tensor] = []
    alone, answer = probe.alone, probe.answer

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        last = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
        if isinstance(last, Tensor) and last.ndim == 3:
            states.append(last)

    base = get_base_model(model.model)
    with torch.enable_grad(), base.register_forward_hook(keep):
        embeddings = model.embed(alone).detach().requires_grad_()
        logits = model(alone, embeddings).logits
        if not are_close(logits.detach(), answer, probe):
            return "it reads more of a text than its input embeddings", None
        # A fixed direction, so that the gradients of logits do not cancel.
        direction = torch.linspace(1, 2, logits.shape[-1], dtype=logits.dtype, device=logits.device)
        points = [embeddings, *(state for state in states[-1:] if state.requires_grad)]
        slopes: tuple[Tensor | None, ...] = torch.autograd.grad((logits * direction).sum(), points, allow_unused=True)
    if slopes[0] is None:
        return "its prediction has no gradient at its input embeddings", None
    # What reaches the head are not the last layer's own states, which methods follow.
    if has_scalar_mix(model.model):
        return "", None
    # BigBird pads texts to full blocks.
    if len(slopes) == 1 or slopes[1] is None or slopes[1].shape[1] < alone.length:
        return "", None
    return "", _name_positions(model, alone, slopes[1][0, : alone.length].double())


def _name_positions(model: Any, alone: Batch, rows: Tensor) -> Readout | None:
    """Return the name of the positions whose gradients [L, d] are not zero, if one name describes them all."""
    size = rows.abs().amax(1)
    tolerance = TOLERANCE[model.dtype.itemsize] * float(size.max())
    read = size > tolerance
    used = rows[read]
    if not len(used) or float((used - used[0]).abs().max()) > tolerance:
        return None
    place = torch.arange(alone.length, device=read.device)
    expected: dict[Readout, Tensor] = {
        "first": place == 0,
        "last": place == _find_last(model, alone)[0],
        "all": alone.attended[0],
        "content": alone.content[0],
    }
    found = [name for name, positions in expected.items() if torch.equal(read, positions)]
    # A text of one token has all of them at one position: then the usual one is taken.
    usual: Readout = "last" if model.is_decoder else "first"
    if usual in found:
        return usual
    return found[0] if found else None


def _find_last(model: Any, batch: Batch) -> Tensor:
    if model.modality == "image":
        return torch.full((len(batch),), batch.length - 1, device=batch.device)
    return find_last_tokens(batch, model.config.get_text_config().pad_token_id)


def make_readout_weights(model: Any, batch: Batch) -> Tensor:
    """Return the weights [B, L] of the positions that the head for the whole text reads.

    Raises:
        ExpoundError: they are neither one position nor a mean of several.
    """
    kind = find_readout(model, batch)
    if kind is None and not model.is_checked:
        kind = "last" if model.is_decoder else "first"
    if kind is None:
        raise ExpoundError(f"model type {model.config.model_type!r}: {_describe_readout(model)}")
    if kind in ("all", "content"):
        mask = batch.attended if kind == "all" else batch.content
        return (mask / mask.sum(1, keepdim=True)).to(model.dtype)
    position = batch.attended.long().argmax(1) if kind == "first" else _find_last(model, batch).to(batch.device)
    weights = torch.zeros(batch.attended.shape, device=batch.device, dtype=model.dtype)
    return weights.scatter(1, position[:, None], 1.0)


PADDING = 3
"""Positions of padding that the check adds."""
MIN_WEIGHT = 1e-9
"""Weights of attention are at least this large, since their logarithms are added."""


def make_pairwise_mask(model: Any, added: Tensor) -> Tensor:
    """Return the mask [B, 1, L, L] that adds numbers [B, L] to the attention to each position, causal for decoders."""
    length = added.shape[1]
    mask = added[:, None, None, :].expand(-1, 1, length, -1)
    if not model.is_decoder:
        return mask
    # Models take a mask of pairs as it is, without their own causal mask.
    later = torch.ones(length, length, dtype=torch.bool, device=added.device).triu(1)
    return mask.masked_fill(later, torch.finfo(added.dtype).min)


def weigh_attention(model: Any, batch: Batch, keep: Tensor) -> Batch:
    """Return the batch with the attention to each content position multiplied by `keep` [B, L].

    The position itself still attends to itself. At 0 it has no effect, as if it were removed, while the others keep
    their numbers.

    Raises:
        ExpoundError: the model's attention takes no weights per position.
    """
    reason = check_pairwise_mask(model, batch)
    if reason:
        raise ExpoundError(
            f"attention to words cannot be weighed for {model.config.model_type}, {reason}: replace them instead"
        )
    batch = model.add_position_ids(batch)
    precise = torch.promote_types(model.dtype, torch.float32)
    seen = torch.where(batch.content, keep.to(precise), batch.attended.to(precise))
    lowest = torch.finfo(model.dtype).min
    # exp(log a + logit) multiplies the attention by a; the clamp keeps the gradient finite at a = 0.
    bias = make_pairwise_mask(model, torch.where(batch.attended, seen.clamp(min=MIN_WEIGHT).log(), lowest))
    # A position that no one may attend to would have a softmax over nothing.
    itself = torch.eye(batch.length, dtype=torch.bool, device=batch.device)
    bias = torch.where(itself & batch.attended[:, None, :, None], 0.0, bias).to(model.dtype)
    return replace(batch, inputs=batch.inputs | {"attention_mask": bias})


def check_pairwise_mask(model: Any, batch: Batch) -> str:
    """Check that attention adds a mask [B, 1, L, L] of numbers to its logits, so that attention can fade.

    Models with local attention take such a mask in place of their windows, so each new length is checked.
    """

    def answer(alone: Batch, mask: Tensor) -> Tensor:
        masked = replace(alone, inputs=alone.inputs | {"attention_mask": mask})
        logits: Tensor = model.run_pass(masked, None, Capture()).logits
        return logits

    def shift(alone: Batch) -> Tensor:
        # A softmax does not see a number that is added to all logits.
        added = alone.attended.new_full(alone.attended.shape, -1.0, dtype=model.dtype)
        return answer(alone, make_pairwise_mask(model, added))

    def add_masks(alone: Batch) -> Tensor:
        alone = model.add_position_ids(alone)
        hidden = int(alone.content[0].nonzero()[0])
        blocked = alone.attended.long().clone()
        blocked[:, hidden] = 0
        added = alone.attended.new_zeros(alone.attended.shape, dtype=model.dtype)
        added[:, hidden] = torch.finfo(model.dtype).min
        shifted, faded = shift(alone), answer(alone, make_pairwise_mask(model, added))
        # Nothing fades where masks are ignored.
        return shifted + (answer(alone, blocked) - faded) if (faded != shifted).any() else shifted + torch.nan

    def compare_whole() -> bool:
        longest = batch.select([int(batch.attended.sum(1).argmax())]).trim_padding()[0]
        whole = model.add_position_ids(longest)
        return are_close(shift(whole), model(whole).logits, Probe(model, batch))

    if not is_exact(model, "pairwise mask", batch, add_masks):
        return "whose attention takes no weights per position, or takes them in place of its windows"
    length = int(batch.attended.sum(1).max())
    if length > MOST and not remember(model, f"pairwise mask at {length} positions", compare_whole):
        return f"whose attention reads a text of {length} tokens in windows, which weights per position would replace"
    return ""


def check_answers(model: Any, probe: Probe) -> str:
    """Check that predictions are the Hugging Face model's own, and that no response token depends on later ones."""
    answer, name = probe.answer, type(unwrap_adapter(model.model)).__name__
    if not model.task.is_generated:
        if are_close(answer, model.compute_own_answer(probe.alone), probe):
            return ""
        return f"its predictions differ from what {name} gives to a text alone"
    alone = probe.alone
    ids, response = alone.inputs["input_ids"], alone.response
    assert response is not None
    # The last response token is left out: what precedes it does not need it, unless attention is not causal.
    if model.is_encoder_decoder:
        decoder = alone.decoder_mask
        assert decoder is not None
        said, before = ids[decoder][None], ids[alone.attended & ~decoder][None]
        arguments = {"input_ids": before, "decoder_input_ids": said[:, :-1]}
    else:
        said = ids[:, : int(response[0].nonzero()[-1]) + 1]
        arguments = {"input_ids": said[:, :-1]}
        if alone.images is not None:
            arguments |= model.process_images(said[:, :-1], alone.images[0], int(response.sum()) - 1)
    count = int(response.sum())
    own = model.generator(**arguments, use_cache=False, return_dict=True).logits[0, -count:].double()
    expected = own.log_softmax(-1).gather(1, said[0, -count:, None])[:, 0]
    if are_close(answer[0, :, 0], expected, probe):
        return ""
    name = type(unwrap_adapter(model.generator)).__name__
    return f"its log-probabilities of a response are not those that {name} gives before it has read what follows"


def check_gradients(model: Any, probe: Probe) -> str:
    """Check that the prediction on the model's own embeddings is its own, and has a gradient there."""
    reason: str = take_slopes(model, probe)[0]
    alone = probe.alone
    if reason or alone.images is None:
        return reason
    # A model may read an image past its embeddings, too: then those of another image do not give that image's answer.
    draw, noise = np.random.default_rng(0), []
    for image in alone.images[0]:
        noise.append(Image.fromarray(draw.integers(0, 255, (image.height, image.width, 3), dtype=np.uint8)))
    other = replace(alone, images=(tuple(noise),))
    if are_close(model(alone, model.embed(other)).logits, model(other).logits, probe):
        return ""
    return "its layers read images beside its input embeddings"


def check_readout(model: Any, probe: Probe) -> str:
    """Check that the head for the whole input reads one position, or the mean of several."""
    if not model.has_text_head or take_slopes(model, probe)[1]:
        return ""
    return _describe_readout(model)


def _describe_readout(model: Any) -> str:
    if has_scalar_mix(model.model):
        return "its head reads a scalar mix of all layers"
    return "its head does not read one position or a mean of positions"


def check_attention(model: Any, probe: Probe) -> str:
    """Check that each layer has one attention map, whose rows are shares, and that they are the model's own."""
    alone = probe.alone
    capture = Capture(attentions=True)
    outputs = model(alone, capture=capture)
    if not _is_a_softmax(model, probe, outputs.logits, capture):
        return NOT_A_SOFTMAX
    maps, layers = outputs.attentions, model.attention_shape[0]
    if len(maps) != layers:
        return f"its {layers} layers have {len(maps)} attention maps"
    for layer in maps:
        if layer.ndim != 4 or list(layer.shape[-2:]) != [alone.length] * 2:
            return "its attention maps are not among the positions of the input"
        # Joined maps of an encoder-decoder have one row sum per side.
        most = 2.0 if model.is_encoder_decoder else 1.0
        if float(layer.sum(-1).max()) > most + 10 * TOLERANCE[model.dtype.itemsize] or float(layer.min()) < 0:
            return "the rows of its attention maps do not sum to 1"
    return ""


def check_second_derivatives(model: Any, probe: Probe) -> str:
    """Check that attention computed without fused kernels, which second derivatives need, gives the same prediction."""
    capture = Capture(differentiable_twice=True)
    logits = model.run_pass(probe.alone, None, capture).logits
    return "" if _is_a_softmax(model, probe, logits, capture) else NOT_A_SOFTMAX


def _is_a_softmax(model: Any, probe: Probe, logits: Tensor, capture: Capture) -> bool:
    """Return whether attention as an explicit softmax, which gives these logits, gives the model's own prediction.

    A deep model in 16 bits rounds some predictions by more than the tolerance. Then the mean difference decides, over
    copies of the example with a little noise in their embeddings: rounding cancels there, another function does not.
    A mean within five of its standard errors is rounding, too; with eight copies chance exceeds that once in 600 times.
    """
    if are_close(logits, probe.answer, probe):
        return True
    if get_tolerance(model) < TOLERANCE[2]:
        return False
    embeddings, generator = model.embed(probe.alone), torch.Generator().manual_seed(0)
    differences = []
    for _ in range(COPIES):
        noise = torch.randn(embeddings.shape, generator=generator).to(embeddings)
        copy = embeddings * (1 + torch.finfo(torch.bfloat16).eps * noise)
        found, own = (model.run_pass(probe.alone, copy, each).logits.double() for each in (capture, Capture()))
        differences.append(found - own)
    of_copies = torch.stack(differences)
    mean, error = of_copies.mean(0), of_copies.std(0) / COPIES**0.5
    return float(mean.norm()) < 5 * float(error.norm()) or are_close(probe.answer + mean, probe.answer, probe)


def check_padding(model: Any, probe: Probe) -> str:
    """Check that padding does not change the prediction."""
    if model.modality == "image":
        return ""
    alone = probe.alone
    sides = (PADDING, 0) if model.is_decoder else (0, PADDING)

    def pad(values: Tensor) -> Tensor:
        return nn.functional.pad(values, sides)

    padded = alone._map_tensors(pad, PER_POSITION)
    ids = padded.inputs["input_ids"].masked_fill(~padded.attended, model.pad_id)
    padded = replace(padded, inputs=padded.inputs | {"input_ids": ids})
    logits = model.run_pass(padded, None, Capture()).logits
    logits = model.task.select_positions(logits, padded.attended[0])
    if are_close(logits, probe.answer, probe):
        return ""
    return "padding changes its predictions"


def check_linear_rules(model: Any, probe: Probe) -> str:
    """Check that the rules of held factors explain the whole prediction."""
    return prove_rules(model, probe.alone, probe.answer, LINEAR_RULES, get_tolerance(model))


def check_shared_rules(model: Any, probe: Probe) -> str:
    """Check that rules which share products explain the whole prediction, and attention's logits."""
    rules = DerivativeRules(attention="shared", gate="both")
    return prove_rules(model, probe.alone, probe.answer, rules, get_tolerance(model))


CHECKS: dict[str, Callable[[Any, Probe], str]] = {
    "answers": check_answers,
    "gradients": check_gradients,
    "readout": check_readout,
    "attention": check_attention,
    "padding": check_padding,
    "linear_rules": check_linear_rules,
    "shared_rules": check_shared_rules,
    "second_derivatives": check_second_derivatives,
}
