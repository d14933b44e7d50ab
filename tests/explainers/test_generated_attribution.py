"""Attributions of what a model says: rows and units, passes that are shared, sources removed as texts, what is kept."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

import expound
from causal import causal
from chats import CHAT, SOURCES, chatting
from expound import Explanation, Explanations, ExpoundError, explainer
from expound.cli import main
from expound.explainers.base import resolve_unit
from expound.explainers.plan import plan_work
from expound.models.tasks import base as generation_task
from expound.reports.highlighted.highlight import highlight_explanation
from expound.reports.highlighted.pieces import Piece, cut_text, find_prompt_extents, scores_to_levels
from expound.reports.records import Exchange, Unit, make_response_target
from expound.reports.terminal import render_explanation
from expound.testing.no_side_effects import simulate_use, snapshot
from small import NATIVE

METHODS = [name for name in NATIVE if name not in ("decompx_classifier", "solvex")]
QUICK = {key: {"n_samples": 8} for key in ("smooth_grad", "lime", "kernel_shap", "shapley_sampling")}
QUICK["integrated_gradients"] = {"n_steps": 2}


def make_exchange(start, end, words=("It", "is", "so.", "Is", "it?")):
    """An exchange whose response has one token per word."""
    return Exchange("p", ("prompt",), ((0, 1),), ("prompt",), " ".join(words), words, tuple(word_extents(words)))


def word_extents(words):
    place = 0
    for word in words:
        yield place, place + len(word)
        place += len(word) + 1


@pytest.fixture(scope="module")
def model():
    return chatting()


def log_prob(model, prompt, response):
    """log p of each token of the response, computed without the library."""
    ids = model.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    both = model.tokenizer(prompt + response, add_special_tokens=False)["input_ids"]
    assert both[: len(ids)] == ids
    with torch.no_grad():
        logits = model.model(torch.tensor([both])).logits[0].log_softmax(-1)
    return logits[len(ids) - 1 : -1].gather(1, torch.tensor(both[len(ids) :])[:, None])[:, 0]


def test_removing_a_source_is_the_same_as_leaving_its_text_out(model):
    (found,) = expound.attribute(model, [CHAT], method="occlusion", unit="source", target="sentences")
    assert found.unit_texts == ("doc 1", "doc 2")
    assert found.target_texts == ("the town .", "Two women laugh at it .")
    whole = log_prob(model, found.exchange.prompt, found.response)
    expected = np.zeros((2, 2))
    for column, text in enumerate(SOURCES.values()):
        without = log_prob(model, found.exchange.prompt.replace(text.rstrip(), ""), found.response)
        for row, span in enumerate(target.value for target in found.targets):
            expected[row, column] = float((whole - without)[slice(*span)].sum())
    np.testing.assert_allclose(found.scores, expected, rtol=1e-5)
    for target in found.targets:
        np.testing.assert_allclose(target.log_prob, float(whole[slice(*target.value)].sum()), rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_is_the_methods_own_score_of_that_span(model, method):
    chosen = explainer(method, **QUICK.get(method, {}))
    (found,) = expound.attribute(model, [CHAT], chosen, [(0, 3), (3, 4), (2, 9)], unit="token")
    batch = model.encode([CHAT])
    chosen, _ = resolve_unit(model, chosen, "token", {})
    for row, span in enumerate(((0, 3), (3, 4), (2, 9))):
        with torch.no_grad():
            alone = chosen.attribute(model, batch, span)[0][batch.content[0]]
        np.testing.assert_allclose(found.scores[row], alone.numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("unit", ["word", "sentence", "source"])
def test_units_of_methods_that_add_up_are_sums_of_tokens(model, unit):
    tokens, units = (
        expound.attribute(model, [CHAT], "input_x_gradient", "words", unit=each)[0] for each in ("token", unit)
    )
    for column, (start, end) in enumerate(find_prompt_extents(units)):
        inside = [start <= a and b <= end and (a < b or unit != "word") for a, b in find_prompt_extents(tokens)]
        np.testing.assert_allclose(units.scores[:, column], tokens.scores[:, inside].sum(1), rtol=1e-4, atol=1e-6)


def test_a_foil_is_another_response_after_the_same_prompt(model):
    def scores(**changes):
        return expound.attribute(model, [CHAT | changes], "occlusion", "response", unit="source")[0]

    one, other, both = scores(), scores(response="Never."), scores(foil="Never.")
    np.testing.assert_allclose(both.scores, one.scores - other.scores, atol=1e-6)
    assert both.target.log_prob == pytest.approx(one.target.log_prob - other.target.log_prob, abs=1e-6)
    assert not scores(foil=CHAT["response"]).scores.any()
    with pytest.raises(expound.ExpoundError, match="explains no difference"):
        expound.attribute(model, [CHAT | {"foil": "Never."}], "saliency")


def count_passes(model, run):
    """The rows of all forward passes, and the number of backward passes through the first layer."""
    seen, back = [], []
    layer = model.model.model.layers[0]
    forward = layer.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0].shape[0]))
    backward = layer.register_full_backward_hook(lambda *_: back.append(1))
    try:
        run()
    finally:
        forward.remove()
        backward.remove()
    return sum(seen), len(back)


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("saliency", (2, 3)),
        ("attn_lrp?output=prob", (2, 10)),
        ("input_x_gradient", (2, 0)),
        ("attention_rollout", (2, 0)),
        ("occlusion", (4, 0)),
        ("lime", (5, 0)),
    ],
)
def test_all_rows_share_the_passes(model, method, passes):
    def run():
        (found,) = expound.attribute(model, [CHAT], method, [(token, token + 1) for token in range(10)], unit="source")
        assert found.scores.shape == (10, 2)

    # The checks of a method run once per loaded model.
    run()
    assert count_passes(model, run) == passes
    chosen, unit = resolve_unit(model, method, "source", {})
    foreseen = plan_work(model, CHAT, chosen, [(token, token + 1) for token in range(10)], unit, 64)
    assert foreseen.forward >= passes[0]
    assert foreseen.backward in (passes[1], 10)
    assert (foreseen.rows, foreseen.units, foreseen.response_tokens) == (10, 2, 24)


def test_plans_for_responses_that_are_not_generated_yet(model):
    example = {key: value for key, value in CHAT.items() if key != "response"}
    chosen, unit = resolve_unit(model, "integrated_gradients", None, {"n_steps": 20})
    found = plan_work(model, example, chosen, "words", unit, 12)
    assert (found.response_tokens, found.rows, found.forward, found.backward) == (12, 12, 12 * 22 + 1, 240)
    assert "12 rows" in str(found)
    assert plan_work(model, example, chosen, "sentences", unit, 12).rows == 1


def test_model_is_restored():
    model = chatting()
    simulate_use(model)
    before = snapshot(model)
    for method in ("input_x_gradient", "occlusion", "attention_all"):
        expound.attribute(model, [CHAT], method, "words", unit="source")
        assert snapshot(model) == before
    with pytest.raises(ExpoundError):
        expound.attribute(model, [CHAT], "decompx_classifier")
    assert snapshot(model) == before


def test_missing_responses_are_generated_first(model):
    (found,) = expound.attribute(model, ["a moving film"], "random", "tokens")
    (row,) = model.respond(["a moving film"])
    assert len(found.exchange.tokens) == len(row["response"])
    assert found.response == model.tokenizer.decode(row["response"], skip_special_tokens=True)


def test_spans_of_a_response_by_kind():
    exchange = make_exchange(0, 1)
    assert exchange.spans("response") == [(0, 5)]
    assert exchange.spans("sentences") == [(0, 3), (3, 5)]
    assert exchange.spans("words") == exchange.spans("tokens") == [(n, n + 1) for n in range(5)]
    pieces = Exchange("p", (), (), (), "It is", ("It", "", "is", "</s>"), ((0, 2), (3, 3), (3, 5), (5, 5)))
    assert pieces.spans("words") == [(0, 1), (1, 4)], "a space goes with the word after it, the end with the last one"
    assert pieces.extent((1, 4)) == (3, 5)
    with pytest.raises(ExpoundError, match="unknown rows of a response 'label'"):
        exchange.spans("label")


def test_invalid_targets_are_refused(model):
    for target in [(2, 2), (0, 99), [(0, 1, 2)], 1.5, [("a", "b")], -1]:
        with pytest.raises(ExpoundError, match="spans \\(start, end\\) within the 24 response tokens"):
            expound.attribute(model, [CHAT], "random", target)


def explanation(
    scores=((3.0, -1.0, 0.5), (0.0, 2.0, 0.25)),
    sources=("source", "source", "user"),
    units=("one", "two", "three"),
    spans=((0, 3), (3, 5)),
    log_probs=(-0.5, -1.5),
    **changes,
):
    exchange = Exchange(
        "<u>one two three<a>",
        ("doc 1", "doc 2", "user"),
        ((3, 6), (7, 10), (11, 16)),
        sources,
        "It is so. Is it?",
        ("It", "is", "so.", "Is", "it?"),
        tuple(word_extents(("It", "is", "so.", "Is", "it?"))),
    )
    targets = []
    for span, log_prob in zip(spans, log_probs, strict=True):
        targets.append(make_response_target(exchange.cut(span), span, log_prob))
    given = {
        "targets": targets,
        "scores": scores,
        "units": [Unit(*unit) for unit in zip(units, (0, 1, 2), (0, 0, 0), (3, 3, 5), strict=True)],
        "texts": ("one", "two", "three"),
        "exchange": exchange,
        "unit": "word",
        "method": "occlusion",
    }
    return Explanation(**given | changes)


def test_citations_name_the_best_sources_of_each_sentence():
    found = explanation().citations(k=1)
    assert found == [("It is so.", [("doc 1", 3.0)]), ("Is it?", [("doc 2", 2.0)])]
    tokens = explanation(
        scores=[[1, 0, 9], [2, 0, 9], [-4, 0, 9], [0, 3, 9], [1, 1, 9]],
        spans=[(n, n + 1) for n in range(5)],
        log_probs=[0] * 5,
    )
    assert [one.sources for one in tokens.citations(2)] == [
        [("doc 2", 0.0), ("doc 1", -1.0)],
        [("doc 2", 4.0), ("doc 1", 1.0)],
    ]
    assert explanation(sources=("user",) * 3).citations(5)[0].sources == [
        ("doc 1", 3.0),
        ("user", 0.5),
        ("doc 2", -1.0),
    ]


def test_text_html_and_table_views():
    item = explanation()
    assert find_prompt_extents(item) == [(3, 6), (7, 10), (11, 16)]
    pd.testing.assert_frame_equal(
        item.to_pandas(),
        pd.DataFrame(
            np.array([[3, -1, 0.5], [0, 2, 0.25]], np.float32),
            index=["It is so.", "Is it?"],
            columns=["one", "two", "three"],
        ),
    )
    assert item.top(2) == [("one", 3.0), ("two", 1.0)]
    assert repr(item) == "Explanation(occlusion, 0: 'It is so. Is it?': one +3, two +1, three +0.75)"
    text = render_explanation(item, plain=True).plain
    assert "It is so. (0.85 per token) ← one +3, three +0.5, two -1" in text
    assert "scores:" not in text
    assert "units source · scores: fall of x\n" in render_explanation(item, plain=True, unit="fall of x").plain.replace(
        item.unit, "source"
    )
    assert "one two three" in render_explanation(item, plain=False).plain
    lines = item.to_latex("Of 5 % & more", "tab:x").splitlines()
    assert lines[6] == r"It is so. & \cellcolor{blue!60}3 & \cellcolor{orange!20}-1 & \cellcolor{blue!10}0.5 \\"
    assert r"\caption{Of 5 \% \& more}" in lines
    assert cut_text("abcd", [(1, 3)]) == [Piece("a"), Piece("bc", unit=0), Piece("d")]
    assert cut_text("", []) == []
    assert scores_to_levels(np.array([[2, -1, 0], [0, 0, 0]])) == [[8, -4, 0], [0, 0, 0]]
    assert highlight_explanation(item).best[1] == "It is so.: one +3, three +0.5, two -1"


def test_saved_attributions_are_loaded_unchanged(tmp_path):
    items = Explanations([explanation(), explanation(params={"n": 3}, truncated=True, index=1)], {"seed": 1})
    items.save(tmp_path / "kept")
    assert Explanations.load(tmp_path / "kept") == items
    assert items[:1][0] == items[0] != items[1]
    assert hash(items[0])
    assert items.to_pandas()["target"].tolist() == [*["It is so."] * 3, *["Is it?"] * 3] * 2
    assert items.to_dataset()[0]["scores"] == [[3.0, -1.0, 0.5], [0.0, 2.0, 0.25]]
    assert json.loads(items.to_json())[1]["params"] == {"n": 3}
    assert "occlusion" in repr(items)
    with pytest.raises(ExpoundError, match="2 targets × 3 units"):
        explanation(scores=[[1.0, 2.0]])


def test_html_has_levels_rows_units_and_escapes(tmp_path):
    bad = explanation(units=("<b>", "two", "three"))
    page = Explanations([bad]).to_html(tmp_path / "page.html")
    assert page == (tmp_path / "page.html").read_text()
    shades = re.search(r'data-levels="([^"]*)"', page)[1]
    assert json.loads(shades) == [[8, 3, 2], [8, -3, 1], [0, 8, 1]]
    assert page.count('data-row="') == 2
    assert page.count('data-unit="') == 3
    assert "<b>" not in page
    assert "aria-pressed" in Explanations([bad])._repr_html_()


def test_a_plain_prompt_on_the_command_line_is_a_message_in_the_chat_template(tmp_path, capsys):
    model = chatting(dtype=torch.float32)
    model.model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    command = ["explain", "a moving film", "--model", str(tmp_path), "--task", "generation", "--json"]
    command += ["--max-new-tokens", "3", "--methods", "input_x_gradient"]
    outputs = {}
    for option in ([], ["--raw-prompt"]):
        assert main([*command, *option]) == 0
        out, errors = capsys.readouterr()
        (outputs[len(option)],) = json.loads(out)
        assert "the answer was cut at 3 tokens: a larger --max-new-tokens" in errors
        assert ("prompt: as it is (--raw-prompt)" if option else "one user message in the chat template") in errors
    chat, raw = outputs[0], outputs[1]
    assert chat["exchange"]["prompt"] == "<|user|>a moving film\n<|assistant|>"
    assert raw["exchange"]["prompt"] == "a moving film"
    model.tokenizer.chat_template = None
    model.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    assert main(command) == 0
    out, errors = capsys.readouterr()
    assert json.loads(out)[0]["scores"] == raw["scores"]
    assert "prompt: as it is (the tokenizer has no chat template)" in errors
    assert main(["explain", "a film", "--model", str(tmp_path), "--raw-prompt"]) == 2


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_is_not_explained(model, monkeypatch, text):
    ids = [*model.tokenizer(text, add_special_tokens=False)["input_ids"], model.tokenizer.eos_token_id]
    monkeypatch.setattr("expound.models.generation.model.generate_responses", lambda *_: [ids])
    with pytest.raises(ExpoundError, match=r"answer to example 0 is empty.*'messages'.*--temperature.*--response"):
        expound.attribute(model, ["a moving film"], "random")
    assert model.respond(["a moving film"], allow_empty=True)[0]["response"] == ids


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def explain(*options):
        code = main(["explain", "--model", str(tmp_path), "--task", "generation", *options])
        return code, *capsys.readouterr()

    model = chatting(dtype=torch.float32)
    model.model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "one.txt").write_text(SOURCES["doc 1"])
    (tmp_path / "two.txt").write_text(SOURCES["doc 2"])
    (tmp_path / "chat.json").write_text(json.dumps(CHAT["messages"]))
    (tmp_path / "prompt.txt").write_text("Read {one} and {second}: what is small ?")
    sources = ("--source", "one.txt", "--source", "second=two.txt")
    wanted = ("--response", CHAT["response"], "--html", "page.html", "--json", "-o", "kept")
    code, out, errors = explain("--messages", "chat.json", *sources, *wanted)
    assert code == 0, errors
    (found,) = json.loads(out)
    assert [unit["text"] for unit in found["units"]] == ["one", "second"]
    assert np.shape(found["scores"]) == (2, 2)
    assert (tmp_path / "page.html").read_text().count('class="row"') == 2
    assert Explanations.load(tmp_path / "kept")[0].method == "occlusion"
    own = ("--methods", "input_x_gradient", "--response", CHAT["response"], "--attribute-target", "--json")
    code, out, errors = explain("--messages", "chat.json", *sources, *own)
    assert code == 0, errors
    assert np.shape(json.loads(out)[0]["response_scores"]) == (2, len(found["exchange"]["tokens"]))
    code, out, errors = explain("--prompt", "prompt.txt", *sources, "--dry-run", "--methods", "occlusion,saliency")
    assert code == 0, errors
    assert len(out.splitlines()) == 3
    assert "64 tokens, 1 rows × 2 units (source): at most 4 forward passes" in out
    for options, message in (
        (("--prompt", "prompt.txt", "--source", "one.txt"), "unknown source 'second'. Valid choices: one"),
        (("--prompt", "prompt.txt", "--messages", "chat.json"), "one of a text, --prompt FILE and --messages FILE"),
        (("--messages", "one.txt"), "is not JSON"),
        (("--prompt", "none.txt"), "none.txt does not exist"),
        (
            ("--prompt", "prompt.txt", *sources, "--unit", "page"),
            "unit 'page'. Valid choices: message, paragraph, sentence, source",
        ),
        (("--prompt", "prompt.txt", *sources, "--source", "one=two.txt"), "two sources are called 'one'"),
    ):
        code, _, errors = explain(*options)
        assert (code, message in errors) == (2, True), errors
    assert main(["explain", "a film", "--model", str(tmp_path), "--dry-run"]) == 2


@pytest.mark.parametrize("method", ["decompx_linear", "input_x_gradient", "generic_attention"])
@torch.no_grad()
def test_targets_share_the_backward_pass_through_the_vocabulary(method, monkeypatch):
    # One token at a time, and several of them in one backward pass.
    monkeypatch.setattr(generation_task, "LOGITS_AT_ONCE", 1)
    model = causal("llama")
    batch = model.batch([list(range(5, 15)), [7, 8, 9]], [[20, 21, 22, 23], [24, 25, 26]])
    method, passes = expound.explainer(method), []

    def count(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda slope: passes.append(None))

    for spans in ([(0, 1), (1, 2), (2, 3)], [(0, 2), (1, 3)]):
        targets = torch.tensor(spans)[:, None].expand(-1, 2, -1)
        expected = torch.stack([method.attribute(model, batch, target) for target in targets])
        hook = model.model.lm_head.register_forward_hook(count)
        torch.testing.assert_close(method.attribute_each(model, batch, targets), expected)
        hook.remove()
    # One for all and one to compare; targets that overlap take one each, or one batched pass.
    assert len(passes) == 2 + (1 if method.name == "input_x_gradient" else 2)
