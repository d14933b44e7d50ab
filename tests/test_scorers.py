"""The scorer for Inspect, in a real evaluation of a tiny model."""

import pytest
from sklearn.metrics import roc_auc_score

from chats import chatting
from expound.rewards import measure_removal_effects

inspect_ai = pytest.importorskip("inspect_ai")
from inspect_ai import Task  # noqa: E402
from inspect_ai.dataset import MemoryDataset, Sample  # noqa: E402
from inspect_ai.model import ModelOutput, ModelUsage, get_model  # noqa: E402

from expound.metrics import explanation_consistency as measure_consistency  # noqa: E402
from expound.scorers import citation_use, explanation_consistency  # noqa: E402
from readme_blocks import ROOT, blocks, small_chat_model  # noqa: E402

SOURCES = [
    "a moving film about a small town",
    "two women are holding packages",
    "great acting cannot save a tired story",
]
QUESTION = "[1] {}\n[2] {}\n[3] {}\nwho is holding packages ?".format(*SOURCES)
ANSWERS = ["two women [2]", "a story [1, 3]", "it is dull", "all [1] [2] [3]", "a [3]", " "]


def evaluate(tmp_path, scorer, metadata, answers=ANSWERS):
    samples = [Sample(input=QUESTION, id=number, metadata=metadata) for number in range(1, len(answers) + 1)]
    outputs = [ModelOutput.from_content("mockllm/model", text) for text in answers]
    for output in outputs:
        # Otherwise Inspect counts tokens by an encoding that it downloads.
        output.usage = ModelUsage()
    task = Task(MemoryDataset(samples), scorer=scorer)
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none", max_samples=1, log_samples=True)
    return log


def test_the_score_is_the_auc_of_citations_against_removal_effects(tmp_path):
    model = chatting()
    log = evaluate(tmp_path, citation_use(model, sources="documents"), {"documents": SOURCES})
    assert log.status == "success", log.error
    chat = [{"role": "user", "content": QUESTION}]
    expected = {}
    for number, answer in enumerate(ANSWERS, 1):
        cited, effects = measure_removal_effects(model, chat, answer, SOURCES)
        if effects and 0 < len(cited) < 3:
            expected[number] = roc_auc_score([place in cited for place in range(3)], effects)
    assert sorted(expected) == [1, 2, 5]
    found = {sample.id: sample.scores["citation_use"] for sample in log.samples}
    for number, score in found.items():
        if number in expected:
            assert score.value == pytest.approx(expected[number])
            assert len(score.metadata["effects"]) == 3
        else:
            assert score.value != score.value
    assert found[3].explanation == "the answer cites none of its sources"
    assert found[4].explanation == "the answer cites all of its sources"
    metrics = {name: each.value for name, each in log.results.scores[0].metrics.items()}
    values = list(expected.values())
    assert metrics["mean"] == pytest.approx(sum(values) / 3)
    assert min(values) <= metrics["low"] <= metrics["mean"] <= metrics["high"] <= max(values)


def test_a_model_in_a_folder_without_a_chat_template_reads_text(tmp_path):
    model = chatting(template=None)
    model.model.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    log = evaluate(tmp_path, citation_use(str(tmp_path / "model")), {"sources": SOURCES}, ANSWERS[:1])
    assert log.status == "success", log.error
    _, effects = measure_removal_effects(model, QUESTION, ANSWERS[0], SOURCES)
    assert log.samples[0].scores["citation_use"].metadata["effects"] == pytest.approx(effects, abs=1e-5)


def test_samples_that_are_all_unscored_have_no_interval(tmp_path):
    log = evaluate(tmp_path, citation_use(chatting()), {"sources": SOURCES}, ["it is dull", " "])
    assert log.status == "success", log.error
    metrics = {name: each.value for name, each in log.results.scores[0].metrics.items()}
    assert all(metrics[name] != metrics[name] for name in ("low", "high"))


def test_a_sample_without_sources_is_an_error(tmp_path):
    log = evaluate(tmp_path, citation_use(chatting()), {}, ANSWERS[:1])
    assert log.status == "error"
    assert "metadata of sample 1 has no 'sources'" in log.error.message


def test_the_page_evaluates_a_local_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    small_chat_model(tmp_path / "my-chat-model")
    _, block = blocks(ROOT / "docs" / "citation_use.md")
    names = {"sources": SOURCES, "question": {"content": QUESTION}}
    exec(block.text, names)
    (log,) = names["logs"]
    assert log.status == "success", log.error
    assert log.samples[0].scores["citation_use"].metadata["cited"] == []


def test_consistency_of_reasons_is_that_of_the_metric(tmp_path):
    model = chatting()
    answers = ["two women . It is dull .", "two women", " "]
    scorer = explanation_consistency(model, "occlusion", unit="word")
    log = evaluate(tmp_path, scorer, {}, answers)
    assert log.status == "success", log.error
    found = {sample.id: sample.scores["explanation_consistency"].value for sample in log.samples}
    row = {"messages": [{"role": "user", "content": QUESTION}], "response": answers[0]}
    assert found[1] == pytest.approx(measure_consistency(model, [row], "occlusion")[0])
    assert found[2] != found[2]
    assert found[3] != found[3]
