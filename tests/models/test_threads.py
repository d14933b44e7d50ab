"""Threads that share a model get the same numbers as one after the other."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

from expound.explainers import EXPLAINERS
from expound.models import Capture, ExplainedModel
from expound.models.state import get_lock
from expound.testing.no_side_effects import simulate_use, snapshot
from small import PAIRS, make_explainer, small, uneven

PAIRINGS = [
    ("occlusion", "alti"),
    ("integrated_gradients", "attention_rollout"),
    ("decompx_linear", "saliency"),
    ("value_zeroing", "input_x_gradient"),
    ("gradient_shap", "smooth_grad"),
    ("deep_lift", "globenc"),
]
CALLS = 25
"""Calls in each of two threads: fifty for each pairing."""


def run_together(*jobs):
    """Return the results of functions that run at the same time, each in its own thread."""
    start = threading.Barrier(len(jobs))

    def run(job):
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [each.result() for each in [pool.submit(run, job) for job in jobs]]


def repeat_attribution(method, model, batch, calls=CALLS):
    return [make_explainer(method).attribute(model, batch).detach() for _ in range(calls)]


@pytest.mark.parametrize("pairing", PAIRINGS, ids="+".join)
def test_two_methods_at_a_time_say_what_each_says_alone(pairing):
    model = simulate_use(small("bert"))
    other = ExplainedModel(model.model, model.processing_class)
    batch = model.encode(uneven("bert", 2))
    alone = [make_explainer(method).attribute(model, batch).detach() for method in pairing]
    before = snapshot(model)
    found = run_together(
        *(lambda m=m, on=on: repeat_attribution(m, on, batch) for m, on in zip(pairing, (model, other), strict=True))
    )
    for scores, expected in zip(found, alone, strict=True):
        assert all(torch.equal(each, expected) for each in scores)
    assert snapshot(model) == before


def test_texts_are_encoded_while_a_decoder_is_read():
    model = small("gpt2")
    texts = uneven("gpt2", 3)
    batch = model.encode(texts)

    def encode():
        return [model.encode(texts).inputs["input_ids"] for _ in range(200)]

    ids, _ = run_together(encode, lambda: repeat_attribution("occlusion", model, batch, 40))
    assert all(torch.equal(each, batch.inputs["input_ids"]) for each in ids)


def test_spans_of_one_tokenizer_in_several_threads():
    one, two = small("bert", "QuestionAnswering"), small("bert", "QuestionAnswering")
    two.processing_class = one.processing_class
    two.requested_max_length = 20
    expected = [model.encode(PAIRS).inputs["input_ids"] for model in (one, two)]
    for _ in range(3):
        found = run_together(
            *(lambda m=m: [m.encode(PAIRS).inputs["input_ids"] for _ in range(60)] for m in (one, two))
        )
        for ids, right in zip(found, expected, strict=True):
            assert all(torch.equal(each, right) for each in ids)


@pytest.mark.parametrize("family", ["big_bird", "albert"])
def test_two_models_that_seed_or_switch_for_the_process(family):
    models = [small(family), small(family)]
    batches = [model.encode(uneven(family, 2)) for model in models]
    long = [batch.inputs["input_ids"].repeat(1, 6)[:, :40] for batch in batches]
    batches = [type(batch).from_ids(ids) for batch, ids in zip(batches, long, strict=True)]
    methods = ("gradient_shap", "saliency")
    alone = [make_explainer(name).attribute(m, b).detach() for name, m, b in zip(methods, models, batches, strict=True)]
    flags = torch.backends.cuda.flash_sdp_enabled()
    before = [snapshot(model) for model in models]
    jobs = [
        lambda name=name, m=m, b=b: repeat_attribution(name, m, b, 15)
        for name, m, b in zip(methods, models, batches, strict=True)
    ]
    for scores, expected in zip(run_together(*jobs), alone, strict=True):
        assert all(torch.equal(each, expected) for each in scores)
    assert [snapshot(model) for model in models] == before
    assert torch.backends.cuda.flash_sdp_enabled() == flags


def test_random_states_come_back_when_blocks_overlap():
    models = [small("bert"), small("bert")]
    torch.manual_seed(1), np.random.seed(1)  # noqa: NPY002
    before = snapshot(models[0])
    inside, leave = threading.Event(), threading.Event()

    def run_first():
        with models[0].evaluation_mode():
            torch.rand(3)
            inside.set()
            leave.wait(5)

    def run_second():
        inside.wait(5)
        with models[1].evaluation_mode():
            torch.rand(2), np.random.rand(2)  # noqa: NPY002
            leave.set()
            time.sleep(0.05)
            torch.rand(1)

    run_together(run_first, run_second)
    after = snapshot(models[0])
    assert (after["torch"], after["numpy"]) == (before["torch"], before["numpy"])


def test_two_models_do_not_wait_for_each_other():
    one, two = small("bert"), small("bert")
    with one.lock():
        done = []
        thread = threading.Thread(
            target=lambda: done.append(repeat_attribution("occlusion", two, two.encode(["a film"]), 1))
        )
        thread.start()
        thread.join(20)
        assert done


def test_one_model_is_waited_for_by_all_that_share_it():
    one = small("bert")
    two = ExplainedModel(one.model, one.processing_class)
    three = two.with_max_length(20)
    batch = one.encode(["a film"])
    for other in (two, three):
        done = []
        thread = threading.Thread(target=lambda other=other, done=done: done.append(other.predict(batch)))
        with one.lock():
            one.predict(batch)  # the lock is re-entrant
            thread.start()
            thread.join(0.2)
            assert not done
        thread.join(20)
        assert done


def test_models_made_of_one_configuration_wait_for_each_other():
    one = small("bert")
    twin = type(one.model)(one.config).double()
    assert ExplainedModel(twin).lock() is one.lock()
    # Two heads with configurations of their own, which share the weights below.
    other = AutoModelForQuestionAnswering.from_config(deepcopy(one.config))
    other.bert = one.model.bert
    assert ExplainedModel(other).lock() is one.lock()


def test_what_is_remembered_is_one_thread_s():
    model = small("bert")
    batch = model.encode(uneven("bert", 2))
    keep = torch.ones((1, *batch.content.shape), dtype=torch.bool)

    def use_cache():
        for _ in range(30):
            with model.cache_perturbed():
                model.predict_perturbed(batch, keep)
                time.sleep(random.random() / 1000)

    run_together(use_cache, use_cache, use_cache)
    assert model.perturbation_cache is None


def test_an_exception_or_interrupt_gives_the_lock_back():
    model = small("bert")
    batch = model.encode(["a film"])

    def interrupt(*_):
        raise KeyboardInterrupt

    with model.model.base_model.register_forward_hook(interrupt), pytest.raises(KeyboardInterrupt):
        make_explainer("occlusion").attribute(model, batch)
    (prediction,) = run_together(lambda: model.predict(batch))
    assert prediction.shape == (1,)


def test_a_lock_goes_with_its_object():
    class Thing:
        pass

    first = Thing()
    lock = get_lock(first)
    assert get_lock(first) is lock
    number = id(first)
    del first
    from expound.models import state

    assert number not in state._locks


def test_passes_with_and_without_capture_at_a_time():
    model = small("bert")
    batch = model.encode(uneven("bert", 2))
    plain, captured = model(batch).logits, model(batch, capture=Capture(attentions=True)).logits
    with torch.no_grad():
        found = run_together(
            lambda: [model(batch).logits for _ in range(100)],
            lambda: [model(batch, capture=Capture(attentions=True)).logits for _ in range(100)],
        )
    assert all(torch.equal(each, plain) for each in found[0])
    assert all(torch.equal(each, captured) for each in found[1])


def test_every_method_that_needs_only_the_model_is_in_a_pairing_or_like_one_that_is():
    families = {EXPLAINERS[name].card.family for pairing in PAIRINGS for name in pairing}
    assert families >= {"gradients", "attention", "decomposition", "perturbation"}
