"""A model behind a server: the same explanations as from its weights, also after errors of the network."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest

import chats
import expound
import families
from completions_server import serve
from expound import ExpoundError
from expound.cli import main
from expound.explainers import EXPLAINERS
from expound.explainers.base import require_removal
from expound.models.generation import server as client

REMOVAL = ["occlusion", "lime?n_samples=24", "kernel_shap?n_samples=24", "context_cite?n_samples=24&alpha=0.0001",
           "shapley_sampling?n_samples=24"]  # fmt: skip


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.005)


@pytest.fixture(scope="module")
def local_model():
    return chats.chatting()


@pytest.fixture(scope="module")
def folder(local_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    local_model.tokenizer.save_pretrained(path)
    return path


def load_remote(served, folder, **options):
    query = "".join(f"&{name}={value}" for name, value in options.items())
    return expound.load(f"{served.address}?model=tiny&tokenizer={folder}{query}", task="generation", max_length=260)


def explain(model, method="occlusion", **options):
    return expound.attribute(model, [chats.CHAT], method, **{"unit": "word", "target": "sentences"} | options)[0]


def require_equal(one, other):
    assert one.unit_texts == other.unit_texts
    assert one.target_texts == other.target_texts
    assert np.abs(other.scores).max() > 1e-4
    np.testing.assert_allclose(one.scores, other.scores, rtol=0, atol=1e-5)
    for mine, its in zip(one.targets, other.targets, strict=True):
        assert mine.log_prob == pytest.approx(its.log_prob, abs=1e-5)


FORMS = ["max_tokens 0", "max_tokens 1", "prompt_logprobs"]


@pytest.mark.parametrize(("method", "form"), families.rotate(REMOVAL, FORMS))
def test_explanations_are_those_of_the_weights(local_model, folder, method, form):
    with serve(local_model, forms=(form,)) as served:
        model = load_remote(served, folder)
        require_equal(explain(model, method), explain(local_model, method))
        assert max(served.answered.values()) == 1
        # Ways that the server refuses are tried once, by the first prompt.
        refused = FORMS.index(form)
        assert len(served.requests) == len(served.answered) + refused
        assert {request["model"] for request in served.requests} == {"tiny"}
        assert {request["path"] for request in served.requests} == {"/v1/completions"}


@pytest.mark.parametrize("options", [{"perturbation": "mask"}, {"perturbation": "pad"}, {"output": "prob"},
                                     {"unit": "source"}, {"unit": "token", "target": [(0, 2), (1, 5)]}])  # fmt: skip
def test_the_ways_of_removal_and_the_explained_number_can_be_chosen(local_model, folder, options):
    with serve(local_model) as served:
        mine, its = explain(load_remote(served, folder), **options), explain(local_model, **options)
    assert np.abs(its.scores).max() > 0
    np.testing.assert_allclose(mine.scores, its.scores, rtol=1e-4, atol=1e-5)


def test_a_foil_is_a_response_of_its_own(local_model, folder):
    row = chats.CHAT | {"foil": " a dull film ."}
    with serve(local_model) as served:
        mine = expound.attribute(load_remote(served, folder), [row], "occlusion", "response", unit="source")[0]
    require_equal(mine, expound.attribute(local_model, [row], "occlusion", "response", unit="source")[0])


def test_tokens_may_be_shown_by_their_names_or_ids(local_model, folder):
    for spell in (local_model.tokenizer.convert_ids_to_tokens, lambda token: f"token_id:{token}"):
        with serve(local_model, spell=spell) as served:
            require_equal(explain(load_remote(served, folder)), explain(local_model))


FAULTS = [429, None, 500, "half of the JSON", (503, {"Retry-After": "0"}), None, "half of the bytes", 502,
          "timeout", "half of the numbers", None, "no choices", 504, "half of the JSON", "timeout", 429, 429, None,
          500]  # fmt: skip


@pytest.mark.parametrize("method", ["occlusion", "context_cite?n_samples=24&alpha=0.0001"])
def test_faults_lose_and_double_nothing(local_model, folder, method):
    with serve(local_model, faults=FAULTS) as served:
        model = load_remote(served, folder, timeout=1, concurrency=3)
        require_equal(explain(model, method), explain(local_model, method))
        faults = sum(fault is not None for fault in FAULTS)
        assert not served.faults
        assert set(served.answered.values()) == {1}
        assert len(served.requests) == len(served.answered) + faults


def test_a_server_that_stays_busy_is_an_error_after_which_the_same_call_resumes(local_model, folder):
    with serve(local_model) as served:
        model = load_remote(served, folder, concurrency=1)
        explain(model, unit="source")
        before = len(served.requests)
        served.faults = [None, None, *[500] * client.ATTEMPTS]
        with pytest.raises(ExpoundError, match=r"answers with status 500 .*busy.* \(8 attempts\)"):
            explain(model)
        assert len(served.requests) == before + 2 + client.ATTEMPTS
        require_equal(explain(model), explain(local_model))
        assert set(served.answered.values()) == {1}


def test_after_an_error_answers_under_way_are_kept(local_model, folder):
    with serve(local_model, delay=0.05) as served:
        model = load_remote(served, folder, concurrency=4)
        explain(model, unit="source")
        served.faults = [401]
        with pytest.raises(ExpoundError, match=r"status 401 .*EXPOUND_API_KEY"):
            explain(model)
        # The three requests beside the refused one were answered, and few were sent after it.
        assert 3 <= len(served.requests) - 4 <= 12
        require_equal(explain(model), explain(local_model))
        assert set(served.answered.values()) == {1}


@pytest.mark.parametrize("way", ["seconds", "date"])
def test_retry_after_is_respected(local_model, folder, way):
    moment = datetime.now(UTC) + timedelta(seconds=2)
    value = "1" if way == "seconds" else format_datetime(moment, usegmt=True)
    with serve(local_model, faults=[(429, {"Retry-After": value})]) as served:
        begun = time.monotonic()
        explain(load_remote(served, folder), unit="source")
        assert time.monotonic() - begun > 0.9
    with (
        serve(local_model, faults=[(429, {"Retry-After": "7200"})]) as served,
        pytest.raises(ExpoundError, match="asks to wait for 7200 seconds"),
    ):
        explain(load_remote(served, folder), unit="source")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("ignores echo", r"1 log-probabilities for \d+ tokens"),
        ("other text", r"token 0 is '.*', and '.*' was sent"),
        ("nothing", "status 400 .*max_tokens must be at least 1"),
    ],
)
def test_a_server_with_other_log_probabilities_is_refused(local_model, folder, form, reason):
    with serve(local_model, forms=(form,)) as served, pytest.raises(ExpoundError, match=reason) as caught:
        explain(load_remote(served, folder))
    assert "does not return the log-probabilities of the tokens that it is sent" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vllms_log_probabilities_of_other_tokens_are_refused(local_model, folder):
    with serve(local_model, forms=("prompt_logprobs",)) as served:
        entries = served.vllm_entries
        served.vllm_entries = lambda ids: entries([(token + 1) % 200 for token in ids])
        with pytest.raises(ExpoundError, match=r"token 1 is \d+ or \d+, and \d+ was sent"):
            explain(load_remote(served, folder))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_more_requests_at_a_time_than_allowed(local_model, folder, concurrency):
    with serve(local_model, delay=0.02) as served:
        explain(load_remote(served, folder, concurrency=concurrency))
        assert len(served.requests) > 10
        assert served.most_active == concurrency


@pytest.mark.parametrize("forms", [("max_tokens 0",), ("max_tokens 0", "token ids")])
def test_a_missing_response_is_generated_as_by_greedy_decoding(local_model, folder, forms):
    row = {name: value for name, value in chats.CHAT.items() if name != "response"}
    (its,) = local_model.respond([row], max_new_tokens=12)
    with serve(local_model, forms=forms, faults=[500, "half of the JSON", 429]) as served:
        (mine,) = load_remote(served, folder).respond([row], max_new_tokens=12)
        assert not served.faults
    if "token ids" in forms:
        assert mine == its
    # Without ids its text is tokenized anew, which may take other tokens for the same text.
    assert local_model.tokenizer.decode(mine["response"]) == local_model.tokenizer.decode(its["response"])


def test_an_answer_that_ends_has_the_end_token(local_model, folder):
    with serve(local_model) as served:
        model = load_remote(served, folder)
        answer = {"text": " the town .", "finish_reason": "stop"}
        served.generate = lambda request, names_ids: (400, {}) if names_ids else (200, served.choose(**answer))
        (row,) = model.respond([{"prompt": "what is small ?"}])
    expected = local_model.tokenizer(" the town .", add_special_tokens=False)["input_ids"]
    assert row["response"] == [*expected, local_model.tokenizer.eos_token_id]


@pytest.mark.parametrize(
    "method", [name for name, kind in EXPLAINERS.items() if not kind.removes_input() and name != "random"]
)
def test_other_methods_are_refused_before_a_request(local_model, folder, method):
    # Two of the learned methods need a training; their class alone decides.
    chosen = object.__new__(EXPLAINERS[method])
    with serve(local_model) as served:
        with pytest.raises(ExpoundError, match=r"is refused: the model is behind .* \(occlusion, lime") as caught:
            require_removal(chosen, load_remote(served, folder))
        assert "\n" not in str(caught.value)
        assert not served.requests


def test_what_needs_weights_is_refused_in_a_sentence(local_model, folder):
    with serve(local_model) as served:
        model = load_remote(served, folder)
        batch = model.encode([chats.CHAT])
        with pytest.raises(ExpoundError, match="neither gradients nor hidden states"):
            model.embed(batch)
        with pytest.raises(ExpoundError, match="neither gradients nor hidden states"):
            model(batch, capture=expound.models.Capture(attentions=True))
        for way in ("zero", "attend"):
            with pytest.raises(ExpoundError, match=r"'remove'.*'mask'"):
                explain(model, perturbation=way)
        with pytest.raises(ExpoundError, match="no logits"):
            explain(model, output="logit")


def test_the_cost_is_told_without_a_request(local_model, folder, capsys, caplog, monkeypatch):
    with serve(local_model) as served:
        address = f"{served.address}?model=tiny&tokenizer={folder}"
        command = ["explain", "what is small ? it is a small town .", "--task", "generation", "--model", address]
        command += ["--methods", "occlusion,context_cite?n_samples=24", "--max-new-tokens", "9"]
        assert main([*command, "--dry-run"]) == 0
        assert not served.requests
        output = capsys.readouterr().out
        assert "occlusion: " in output
        assert "in all, with the response: at most" in output
        model = load_remote(served, folder)
        with caplog.at_level("INFO", "expound"):
            explain(model)
        # The full prompt is counted twice, for the prediction and for the method.
        expected = len(served.requests) + 1
        assert f"explaining (at most {expected} requests, about" in caplog.text


def test_the_key_is_sent_and_not_stored(local_model, folder, monkeypatch):
    monkeypatch.setenv("EXPOUND_API_KEY", "key 7")
    with serve(local_model) as served:
        result = expound.attribute(load_remote(served, folder), [chats.CHAT], "occlusion", unit="source")
        assert {request["key"] for request in served.requests} == {"Bearer key 7"}
        assert "key 7" not in f"{result.config} {result[0]}"
        assert result.config["model"] == f"{served.address}?model=tiny"


def test_addresses_are_checked(folder):
    cases = [
        ("http://127.0.0.1:1/v1?tokenizer=FOLDER", "expected an address such as http://"),
        ("http://127.0.0.1:1/v1?model=a", "give the tokenizer"),
        ("http://127.0.0.1:1/v1?model=a&tokenizer=/no/folder", "there is no tokenizer at /no/folder"),
        ("http://127.0.0.1:1/v1?model=a&tokenizer=FOLDER&concurency=3", "Did you mean 'concurrency'"),
        ("http://127.0.0.1:1/v1?model=a&tokenizer=FOLDER&concurrency=0", "concurrency: expected a whole number from 1"),
        ("http://me:secret@127.0.0.1:1/v1?model=a&tokenizer=FOLDER", "EXPOUND_API_KEY"),
    ]
    for address, message in cases:
        with pytest.raises(ExpoundError, match=message) as caught:
            expound.load(address.replace("FOLDER", str(folder)), task="generation")
        assert "secret" not in str(caught.value)


def test_a_server_is_no_classifier_and_takes_no_device(folder, monkeypatch):
    address = f"http://127.0.0.1:1/v1?model=a&tokenizer={folder}"
    with pytest.raises(ExpoundError, match="task='generation'"):
        expound.load(address)
    with pytest.raises(ExpoundError, match="device="):
        expound.load(address, task="generation", device="cpu")
    with pytest.raises(ExpoundError, match="is the server running"):
        explain(expound.load(address, task="generation"))
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ExpoundError, match=r"pip install 'expound\[remote\]'"):
        expound.load(address, task="generation")


def test_pages_refuse_it_in_a_sentence(folder, capsys):
    address = f"http://127.0.0.1:1/v1?model=a&tokenizer={folder}"
    assert main(["serve", "--model", address, "--task", "generation"]) == 2
    assert "pages need a model's weights" in capsys.readouterr().err


def test_comparisons_and_their_metrics_work(local_model, folder):
    with serve(local_model) as served:
        options = {"methods": ["occlusion", "lime?n_samples=16"], "metrics": ["comprehensiveness"]}
        tables = [
            expound.compare(model, [chats.CHAT], **options) for model in (load_remote(served, folder), local_model)
        ]
    mine, its = (table.results["comprehensiveness"].to_numpy() for table in tables)
    np.testing.assert_allclose(mine, its, atol=1e-5)
