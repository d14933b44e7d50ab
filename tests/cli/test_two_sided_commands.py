"""An encoder with a decoder from the command line: explained, compared, AT2 trained on it; and metrics by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import expound
import families
from expound import explainer, metric
from expound.cli import main
from two_sided import two_sided

WORDS = ("river", "town", "film", "story", "camera", "rain")
ROWS = [
    {
        "prompt": "{sources}\nwhat is small ?",
        "sources": [
            {"name": "doc 1", "text": f"a small {one} is here"},
            {"name": "doc 2", "text": f"two {other} are old"},
        ],
        "response": f"the {one} . it is",
        "evidence": ["doc 1"],
    }
    for one, other in zip(WORDS, reversed(WORDS), strict=True)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("models")
    two_sided("t5", torch.float32).generator.save_pretrained(found)
    families.tokenizer("roberta").save_pretrained(found)
    (found / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return found


def test_a_prompt_is_explained(folder, tmp_path, capsys):
    for name, text in (("prompt", "{sources}\nwhat is small ?"), ("one", "a small town"), ("two", "it is sad")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("prompt", "one", "two")]
    command = ["explain", "--task", "generation", "--model", str(folder), "--device", "cpu", "--prompt", files[0]]
    command += ["--source", files[1], "--source", files[2], "--methods", "occlusion"]
    assert main([*command, "--response", "the town", "--json"]) == 0
    said = capsys.readouterr().out
    model = expound.load(folder, task="generation", device="cpu")
    row = {
        "prompt": "{sources}\nwhat is small ?",
        "sources": {"one": "a small town", "two": "it is sad"},
        "response": "the town",
    }
    (expected,) = expound.attribute(model, [row], method="occlusion", unit="source")
    numbers = np.array(json.loads(said)[0]["scores"], dtype=np.float32)
    np.testing.assert_allclose(numbers, expected.scores, rtol=1e-4, atol=1e-5)
    assert main([*command, "--dry-run"]) == 0
    assert "at most 4 forward passes" in capsys.readouterr().out
    assert main([*command[:-1], "alti", "--response", "the town"]) == 2
    assert "hidden states are not followed through an encoder and a decoder" in capsys.readouterr().err


def test_methods_are_compared_and_at2_is_trained(folder, tmp_path, capsys):
    data = [
        "--task",
        "generation",
        "--model",
        str(folder),
        "--data",
        f"jsonl:{folder / 'chats.jsonl'}",
        "--device",
        "cpu",
    ]
    assert main(["train", "at2", *data, "--output-dir", str(tmp_path / "at2"), "--n-samples", "8", "--quiet"]) == 0
    methods = f"occlusion,generic_attention,attn_lrp,random,attention_to_source:{tmp_path / 'at2'}"
    words = ["--split", "all", "--unit", "source", "--methods", methods, "--output-dir", str(tmp_path / "compared")]
    assert main(["compare", *data, *words, "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "AttnLRP" in shown
    assert "LDS" in shown


@torch.no_grad()
def test_removed_units_and_evidence_by_hand():
    model = two_sided("bart")
    batch = model.encode(ROWS[:1])
    unit, ids = batch.unit_of[0], batch.inputs["input_ids"][0]
    scores = torch.where(unit == 0, 0.1, torch.where(unit == 1, 0.3, 0.0))[None].double()

    def log_prob_without(gone):
        asked = ids[~batch.decoder_mask[0] & ~torch.isin(unit, torch.tensor(gone))]
        decoder, said = ids[batch.decoder_mask[0]], ids[batch.response[0]]
        logits = model.generator(input_ids=asked[None], decoder_input_ids=decoder[None]).logits[0, : len(said)]
        return float(logits.log_softmax(-1).gather(1, said[:, None]).sum())

    judge = {"unit": "source", "perturbation": "remove"}
    drop = metric("topk_drop", k=1, **judge).evaluate(model, batch, scores)["topk_drop"]
    assert float(drop) == pytest.approx(log_prob_without([-2]) - log_prob_without([1]), rel=1e-6)
    measured = float(metric("lds", **judge).evaluate(model, batch, scores)["lds"])
    assert -1 <= measured <= 1
    keep = torch.ones(4, 1, batch.length, dtype=torch.bool)
    for number, gone in enumerate(([-2], [0], [1], [0, 1])):
        keep[number, 0] = ~torch.isin(unit, torch.tensor(gone))
    values = model.task.score_removal(model.predict_perturbed(batch, keep, "remove"), model.resolve_target(batch))[:, 0]
    expected = [log_prob_without(gone) for gone in ([-2], [0], [1], [0, 1])]
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-8)
    found = explainer("occlusion?perturbation=remove", unit="source").attribute(model, batch)
    drops = [expected[0] - expected[1], expected[0] - expected[2]]
    np.testing.assert_allclose([float(found[0, unit == n].sum()) for n in (0, 1)], drops, rtol=1e-8)
    assert batch.rationale_mask[0].tolist() == (unit == 0).tolist()
    recall = metric("recall_at_k", unit="source")
    both = (scores, 1 / scores.clamp(min=0.01))
    assert [float(recall.evaluate(model, batch, one)["recall_at_k"]) for one in both] == [
        0,
        1,
    ]
