"""Runs every method family on one architecture and compares its scores with slow references."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers as hf

import expound
import families
from expound.errors import ExpoundError
from expound.explainers.base import require_finite
from expound.models import Batch
from sweep.own_models import FAMILIES
from sweep.own_references import OwnReference
from sweep.references import MASK, NoReference, Reference
from sweep.tiny_models import build

TOLERANCE = 3e-4
"""Some models compute in float32, whatever their type."""
SMALLEST = 1e-3
"""Errors of scores that are smaller than this are divided by it."""
LENGTHS, RESPONSE, TARGET, PLACE = (9, 6), 2, 1, 3
ATTENTION = ("attention_last", "attention_all", "attention_rollout", "generic_attention", "scaled_attention")
COMPLETE = ("decompx", "decompx_classifier")
FOLLOWED = ("value_zeroing", "globenc", "alti", "information_flow", "flash_trace")
OWN = ("decompx_linear", *FOLLOWED, "attn_lrp", "cp_lrp", "gim")
HELD = {"cp_lrp": "embeddings", "decompx_linear": "layers"}
METHODS = {
    "input_x_gradient": {}, "saliency": {}, "integrated_gradients": {"n_steps": 3},
    "occlusion": {"perturbation": "mask", "unit": "token"},
    "occlusion/remove": {"perturbation": "remove", "unit": "token"},
    "kernel_shap": {"n_samples": 24, "unit": "token"},
    "deep_lift": {"baselines": "zero"},
    **{name: {} for name in (*ATTENTION, *COMPLETE, *OWN)},
}  # fmt: skip

SETS = {"n_samples": 128, "unit": "token", "perturbation": "remove"}
OWN_METHODS = METHODS | {
    "sequential_integrated_gradients": {"n_steps": 2}, "smooth_grad": {"n_samples": 2}, "gradient_shap": {},
    "lime": SETS, "kernel_shap": SETS, "shapley_sampling": SETS, "spex": SETS, "context_cite": SETS,
    "solvex": {"unit": "token", "beam": 100}, "reagent": {"n_steps": 8},
    "attention_to_source": {"untrained": "true"},
}  # fmt: skip
"""Methods of models of one's own: all that need no training; each has a reference."""


class Finding(NamedTuple):
    """What became of one method: `state` is exact, refused, disagrees, crashed, or not built (the architecture)."""

    method: str
    state: str
    detail: str = ""


def sweep_model(
    model_type: str, head: str, methods: Any = METHODS, change: Any = None, **changes: Any
) -> list[Finding]:
    """What becomes of each method on this architecture; `change`: to a given model and that of its reference."""
    try:
        given = raw = build(model_type, head, **changes)
        if change is not None:
            # The parts of the head, as `layers.HEADS`; empty: those of the family.
            raw.own_head = ()
            given, raw = change(raw)
    except Exception as error:
        # A configuration alone does not build every architecture: some need other packages, or sizes that fit.
        return [Finding("", "not built", f"{type(error).__name__}: {error}"[:200])]
    generates = head in ("CausalLM", "Seq2SeqLM")
    try:
        processor = None
        if head == "ImageClassification":
            vision = getattr(raw.config, "vision_config", raw.config)
            size = getattr(vision, "image_size", None) or 32
            size = size if isinstance(size, int) else size[0]
            processor = hf.ViTImageProcessorPil(size={"height": size, "width": size})
        if head == "MaskedLM":
            processor = families.tokenizer("bert")
        model = expound.load(given, processor, task="generation" if generates else None)
        batch = make_batch(model, head)
    except ExpoundError as error:
        return [Finding(method, "refused", str(error)) for method in methods]
    except Exception as error:
        return [Finding(method, "crashed", f"load: {type(error).__name__}: {error}") for method in methods]
    references = []
    for row in range(len(batch)):
        reference = make_reference(raw, head, batch, row)
        reference.mask = model.mask_id if head == "MaskedLM" else MASK
        references.append(reference)
    return [judge(model, batch, references, method, params) for method, params in methods.items()]


def make_batch(model: Any, head: str) -> Any:
    """Two examples of different lengths, padded on the side of the model."""
    generator = torch.Generator().manual_seed(1)
    if head == "ImageClassification":
        size = model.processing_class.size["height"]
        pictures = torch.randint(0, 255, (2, size, size, 3), generator=generator, dtype=torch.uint8)
        return model.encode([picture.numpy() for picture in pictures])
    rows = [torch.randint(5, 300, (length,), generator=generator) for length in LENGTHS]
    if head in ("CausalLM", "Seq2SeqLM"):
        return model.batch([row[:-RESPONSE].tolist() for row in rows], [row[-RESPONSE:].tolist() for row in rows])
    attended = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.full((2, max(LENGTHS)), model.pad_id)
    place = torch.zeros_like(attended)
    for row, values in enumerate(rows):
        ids[row, : len(values)] = values
        place[row, PLACE] = True
    content = attended & ~place
    content[:, 0] = False
    if model.is_decoder:
        shift = max(LENGTHS) - LENGTHS[1]
        ids[1], attended[1], place[1], content[1] = (x[1].roll(shift) for x in (ids, attended, place, content))
    batch = Batch.from_ids(ids, attended, content=content)
    if head != "SequenceClassification":
        from dataclasses import replace

        batch = replace(batch, readout_mask=place)
    return model.add_position_ids(batch)


def make_reference(raw: Any, head: str, batch: Any, row: int) -> Reference:
    if head == "ImageClassification":
        return Reference(raw, head, batch.inputs["pixel_values"][row : row + 1], TARGET)
    ids = batch.inputs["input_ids"][row]
    if hasattr(raw, "own_head"):
        return OwnReference(raw, head, ids[batch.attended[row]], TARGET)
    # transformers counts some decoders of speech as sequence-to-sequence models.
    if batch.decoder_mask is not None:
        prompt = ids[batch.attended[row] & ~batch.decoder_mask[row]]
        return Reference(raw, head, prompt, TARGET, RESPONSE, ids[batch.decoder_mask[row]])
    return Reference(raw, head, ids[batch.attended[row]], TARGET, PLACE if batch.response is None else RESPONSE)


def judge(model: Any, batch: Any, references: list[Reference], method: str, params: dict[str, Any]) -> Finding:
    target = None if model.task.name == "generation" else torch.full((len(batch),), TARGET)
    try:
        explainer = expound.explainer(method.partition("/")[0], model, **params)
        with torch.no_grad():
            explanation = explainer.explain(model, batch, target)
            require_finite(explainer, model, explanation.scores)
    except ExpoundError as error:
        if len(batch) == 1 or "batch_size=1" not in str(error):
            return Finding(method, "refused", str(error))
        found = []
        for row, reference in enumerate(references):
            found.append(judge(model, batch.select([row]).trim_padding()[0], [reference], method, params))
        return max(found, key=lambda each: ("exact", "refused", "disagrees", "crashed").index(each.state))
    except Exception as error:
        return Finding(method, "crashed", f"{type(error).__name__}: {error}")
    worst, reason = 0.0, ""
    for row, reference in enumerate(references):
        columns = batch.content[row].nonzero().flatten()
        scores = explanation.scores[row, columns].double()
        try:
            expected = compute_expected(model, batch, explanation, explainer, reference, row, method, target)
        except NoReference as error:
            return Finding(method, "disagrees", f"no reference: {error}")
        except ExpoundError as error:
            return Finding(method, "disagrees", f"alone: {error}")
        # Parts of a score can cancel but for the rounding of a model that computes in float32.
        error = float((scores - expected).abs().max() / expected.abs().max().clamp(min=SMALLEST))
        if not error < TOLERANCE:
            worst, reason = max(worst, error if error == error else float("inf")), f"row {row}"
    return Finding(method, "disagrees", f"{worst:.1e} {reason}") if reason else Finding(method, "exact")


def check_sum(model: Any, batch: Any, reference: Reference, row: int, target: Any) -> None:
    """Raise NoReference if the contributions of all positions do not sum to the model's own logit."""
    if model.task.name == "generation":
        return
    try:
        whole = expound.explainer("decompx_classifier").explain(model, batch, target, special_tokens=True)
    except ExpoundError:
        # Heads that it does not know (ELECTRA's for masked words) have no contributions to the logit.
        return
    total = float(whole.scores[row, batch.attended[row]].sum())
    score = float(reference.score(reference.run()))
    # Relative to all that is summed, since some models compute norms in float32.
    if abs(total - score) > 1e-6 * max(1, float(whole.scores[row].abs().sum())):
        raise NoReference(f"contributions sum to {total:.6f}, not {score:.6f}")


def compute_expected(
    model: Any, batch: Any, explanation: Any, explainer: Any, reference: Reference, row: int, method: str, target: Any
) -> Any:
    columns = batch.content[row].nonzero().flatten()
    # The first real column is the reference's position 0.
    places = (columns - int(batch.attended[row].long().argmax())).tolist()
    if method in ("input_x_gradient", "saliency"):
        embeddings, slope = reference.gradient()
        scores = (embeddings * slope).sum(-1) if method == "input_x_gradient" else slope.norm(dim=-1)
        if reference.head == "ImageClassification":
            # Patches alone have embeddings; other positions come before them.
            scores = scores.flatten(0, -1)
            return scores[-len(places) :]
        return scores[places].detach()
    if method.startswith("occlusion") and reference.head != "ImageClassification":
        return reference.occlude(places, explainer.perturbation)
    if method in ATTENTION and reference.decoder is None:
        return reference.by_attention(method).detach()[places]
    # Of other architectures the reference would have to know more functions.
    if method in HELD and reference.head == "SequenceClassification" and model.config.model_type in FAMILIES:
        return reference.hold_factors(places, HELD[method])
    alone, _ = batch.select([row]).trim_padding()
    if isinstance(reference, OwnReference):
        return reference.explain(model, alone, explainer, places).detach()
    if method in COMPLETE:
        check_sum(model, batch, reference, row, target)
    if method == "value_zeroing":
        reference.attention()
        reference.find_readout()
    with torch.no_grad():
        scores = explainer.explain(model, alone, None if target is None else target[:1]).scores
    return scores[0][alone.content[0]].double()
