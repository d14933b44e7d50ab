"""Rows in whatever form a user has them: each is the right example, or refused in one sentence."""

import json
import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from PIL import Image

import expound
import families
from chats import chatting, tokenizer
from expound import ExpoundError
from expound.models import ExplainedModel
from expound.models.encoding.encode import read_examples
from small import small

TEXTS = ["a small film", "two women laugh"]
NAMES = ["positive", "negative"]
"""The model's order; tables sort their labels the other way."""
RIGHT = [(("a small film",), "positive"), (("two women laugh",), "negative")]
PAIR = [(("a film", "a town"), None)]
ROWS = [{"text": text, "label": name} for text, name in zip(TEXTS, NAMES, strict=True)]
SORTED = Features({"text": Value("string"), "label": ClassLabel(names=["negative", "positive"])})
CLASSES = Dataset.from_dict({"text": TEXTS, "label": [1, 0]}, features=SORTED)
OTHERS = CLASSES.cast_column("label", ClassLabel(names=["joy", "anger"]))
FRAME = pd.DataFrame(ROWS)
BARE = [((text,), None) for text in TEXTS]
MARKED = [(("a small film",), None, [[2, 7]])]

SHAPES = {
    "a text": (TEXTS[0], BARE[:1]),
    "texts": (TEXTS, BARE),
    "an array of texts": (np.array(TEXTS), BARE),
    "an array of objects": (np.array(TEXTS, dtype=object), BARE),
    "a generator": ((text for text in TEXTS), BARE),
    "a series": (pd.Series(TEXTS), BARE),
    "a row of a frame": (FRAME.iloc[0], RIGHT[:1]),
    "a pair": (("a film", "a town"), PAIR),
    "pairs": ([("a film", "a town")], PAIR),
    "pairs as lists": ([["a film", "a town"]], PAIR),
    "a row": (ROWS[0], RIGHT[:1]),
    "rows": (ROWS, RIGHT),
    "rows of numbers": ([{"text": TEXTS[0], "label": 0}, {"text": TEXTS[1], "label": 1}], RIGHT),
    "rows of numpy's numbers": ([{"text": TEXTS[0], "label": np.int64(0)}], RIGHT[:1]),
    "rows of whole floats": ([{"text": TEXTS[0], "label": 0.0}], RIGHT[:1]),
    "rows of booleans": ([{"text": TEXTS[1], "label": True}], RIGHT[1:]),
    "rows of tensors": ([{"text": TEXTS[1], "label": torch.tensor(1)}], RIGHT[1:]),
    "rows in other case": ([{"text": TEXTS[0], "label": "Positive"}], RIGHT[:1]),
    "rows with an id": ([ROWS[0] | {"id": 7}], RIGHT[:1]),
    "rows with a missing label": ([{"text": TEXTS[0], "label": None}], BARE[:1]),
    "rows with pandas' missing label": ([{"text": TEXTS[0], "label": float("nan")}], BARE[:1]),
    "rows of premise and hypothesis": ([{"premise": "a film", "hypothesis": "a town"}], PAIR),
    "rows of question and context": ([{"question": "a film", "context": "a town"}], PAIR),
    "rows of sentences": ([{"sentence": TEXTS[0], "label": "positive"}], RIGHT[:1]),
    "rows of labels": ([{"text": TEXTS[0], "labels": "positive"}], RIGHT[:1]),
    "a row of a label and labels": ([ROWS[0] | {"labels": "negative"}], "'labels'. Did you mean 'label'"),
    "a row of two texts": ([ROWS[0] | {"review": "a"}], "unknown key of a row 'review'"),
    "a file that does not exist": ("csv:missing.csv", "missing.csv"),
    "rows and texts": ([ROWS[0], TEXTS[1]], [RIGHT[0], BARE[1]]),
    "a dict of lists": ({"text": TEXTS, "label": NAMES}, RIGHT),
    "a dict of series": ({"text": pd.Series(TEXTS), "label": pd.Series(NAMES)}, RIGHT),
    "a frame": (FRAME, RIGHT),
    "a frame with an index": (FRAME.set_index(pd.Index([5, 9])), RIGHT),
    "a frame of numbers": (FRAME.assign(label=[0, 1]), RIGHT),
    "a frame of booleans": (FRAME.assign(label=[False, True]), RIGHT),
    "a frame of categories": (FRAME.assign(label=FRAME.label.astype("category")), RIGHT),
    "a frame with more columns": (FRAME.assign(stars=[1, 5]), RIGHT),
    "a frame of reviews": (FRAME.rename(columns={"text": "review"}), RIGHT),
    "a frame of sentiments": (FRAME.rename(columns={"label": "sentiment"}), RIGHT),
    "a dataset of classes in another order": (CLASSES, RIGHT),
    "its split": (CLASSES.select([0]), RIGHT[:1]),
    "a dataset of names": (Dataset.from_list(ROWS), RIGHT),
    "a stream": (CLASSES.to_iterable_dataset(), RIGHT),
    "a stream of classes under another name": (CLASSES.rename_column("text", "sentence").to_iterable_dataset(), RIGHT),
    "an arrow table": (pa.Table.from_pylist(ROWS), RIGHT),
    "a rationale as characters": ([{"text": TEXTS[0], "rationale": [[2, 7]]}], MARKED),
    "a rationale as words": ([{"text": TEXTS[0], "rationale": ["small"]}], MARKED),
    "a rationale as a mask": ([{"text": TEXTS[0], "rationale": [0, 1, 0]}], MARKED),
    "a rationale as an array": ([{"text": TEXTS[0], "rationale": np.array([0, 1, 0])}], MARKED),
    "rationales of a dataset as words": (Dataset.from_dict({"text": TEXTS[:1], "rationale": [["small"]]}), MARKED),
    "a dataset of other classes": (OTHERS, "label 'anger', which the model does not know"),
    "rows of other classes": ([{"text": "a", "label": "joy"}], "does not know the label 'joy'"),
    "a number too high": ([{"text": "a", "label": 2}], "expected targets from 0 to 1"),
    "several labels": ([{"text": "a", "label": ["positive"]}], "expected one label per example"),
    "a label as a dict": ([{"text": "a", "label": {}}], "expected one label per example"),
    "a hypothesis without a premise": ([{"text": "a", "hypothesis": "b"}], "'hypothesis'. Did you mean 'text_pair'"),
    "a misspelled key": ([{"text": "a", "lable": "positive"}], "'lable'. Did you mean 'label'"),
    "a chat": ([{"messages": []}], "'messages'. Did you mean 'text'"),
    "words": ([{"words": ["a", "b"]}], "'words'. Did you mean 'text'"),
    "lists of words": ([["a", "small", "film"]], "an example is a text"),
    "a rationale that is no part of the text": ([{"text": "a", "rationale": ["b"]}], "'b' does not occur"),
    "columns of different lengths": ({"text": ["a", "b"], "label": ["positive"]}, "different lengths: text 2, label 1"),
    "splits": (DatasetDict({"train": CLASSES}), "one split"),
    "a frame without text": (pd.DataFrame({"stars": [1]}), "no column with a usual name for text"),
    "an empty frame": (FRAME[:0], "no example"),
    "a set": (set(TEXTS), "expected an example or several"),
    "bytes": (b"a small film", "expected an example or several"),
    "a number": (3, "expected an example or several"),
    "nothing": (None, "expected an example or several"),
    "no example": ([], "no example"),
    "a number among texts": (["a", 3], "an example is a text"),
}


@pytest.fixture(scope="module")
def model():
    return small("bert", num_labels=2, id2label=dict(enumerate(NAMES)))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_the_right_example_or_one_sentence(model, shape):
    data, expected = SHAPES[shape]
    if isinstance(expected, str):
        with pytest.raises(ExpoundError, match=expected) as error:
            expound.attribute(model, data, "random", "label")
        assert "\n" not in str(error.value)
        return
    examples = read_examples(model, data)
    assert len(examples) == len(expected)
    for example, (texts, name, *rationale) in zip(examples, expected, strict=True):
        batch = model.encode([example])
        assert batch.alignments[0].texts == texts
        found = None if batch.labels is None else model.labels[batch.labels[0]]
        assert found == name
        (item,) = expound.attribute(model, [example], "random", "predicted" if name is None else "label")
        assert item.texts == texts
        assert name in (None, item.target.text)
        for spans in rationale:
            (start, end), (alignment,) = spans[0], batch.alignments
            marked = [span is not None and start <= span[1] < span[2] <= end for span in alignment.spans]
            assert batch.rationale_mask[0].tolist() == marked


def test_columns_are_named_alike_everywhere_and_said(model, tmp_path, caplog):
    frame = pd.DataFrame({"id": [3, 4], "ticket": TEXTS, "category": NAMES, "note": ["x", "y"]})
    named = {"text_column": "ticket", "label_column": "category"}
    frame.to_csv(tmp_path / "tickets.csv", index=False)
    forms = (
        frame,
        frame.to_dict("records"),
        frame.to_dict("list"),
        Dataset.from_pandas(frame),
        tmp_path / "tickets.csv",
    )
    for form in (*forms, f"csv:{tmp_path}/tickets.csv"):
        items = expound.attribute(model, form, "saliency", "label", **named)
        assert [(item.texts, item.target.text, item.metadata) for item in items] == [
            ((TEXTS[0],), "positive", {"id": items[0].metadata["id"]}),
            ((TEXTS[1],), "negative", {"id": items[1].metadata["id"]}),
        ]
        compared = expound.compare(model, form, ["saliency"], ["important_tokens"], target="label", **named)
        for one, other in zip(items, compared.attributions, strict=True):
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4)
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        expound.attribute(model, frame, "random", **named)
    assert "2 rows; text ← ticket, label ← category (2 classes), id; unused: note" in caplog.messages
    with pytest.raises(ExpoundError, match="no column 'body'"):
        expound.attribute(model, frame, "random", text_column="body")
    with pytest.raises(ExpoundError, match="text_colum"):
        expound.compare(model, frame, ["random"], text_colum="ticket")


def test_names_that_differ_in_case_and_numbers_as_text():
    made = small("bert", num_labels=3, id2label={0: "us", 1: "US", 2: "Us"})
    assert [made.label_id(name) for name in ("US", "us", "Us")] == [1, 0, 2]
    with pytest.raises(ExpoundError, match="labels 0 and 1 and 2 of the model are both called 'uS'"):
        made.label_id("uS")
    made.config.id2label = {"0": "a", "1": "b", "2": "b"}
    assert made.labels == ("a", "b", "b")
    with pytest.raises(ExpoundError, match="labels 1 and 2 of the model are both called 'b'"):
        expound.attribute(made, "a film", "random", "b")


def test_an_image_with_channels_first_is_the_same_image():
    vit = ExplainedModel(families.tiny("vit"), families.processor("vit"))
    pixels = np.random.default_rng(0).integers(0, 256, (32, 40, 3), dtype=np.uint8)
    expected = expound.attribute(vit, Image.fromarray(pixels), "saliency")[0].scores
    first = np.moveaxis(pixels, 2, 0)
    for given in (first, [first], torch.from_numpy(first.copy()), [torch.from_numpy(first.copy())]):
        np.testing.assert_array_equal(expound.attribute(vit, given, "saliency")[0].scores, expected)


TOOLS = [{"type": "function", "function": {"name": "find_shop", "parameters": {}}}]
WITH_TOOLS = (
    "{% if tools %}# {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}none{% endif %}{% endif %}"
)
QUESTION = [{"role": "user", "content": "where is the town ?"}]


@pytest.mark.parametrize("arguments", [{"tools": TOOLS}, {"chat_template_kwargs": {"enable_thinking": False}}, {}])
@pytest.mark.parametrize("as_json", [False, True])
def test_tools_and_arguments_of_the_template_are_rendered(arguments, as_json):
    model = chatting(WITH_TOOLS)
    values = {name: json.dumps(value) if as_json else value for name, value in arguments.items()}
    row = {"messages": QUESTION, "response": " a small town"} | values
    (item,) = expound.attribute(model, [row], "saliency", "response")
    arguments = arguments | arguments.get("chat_template_kwargs", {})
    arguments.pop("chat_template_kwargs", None)
    prompt = tokenizer(WITH_TOOLS).apply_chat_template(
        QUESTION, tokenize=False, add_generation_prompt=True, **arguments
    )
    assert item.exchange.prompt == prompt
    ids, count = model.tokenizer(prompt + row["response"]).input_ids, len(model.tokenizer(prompt).input_ids)
    logits = model.model(torch.tensor([ids])).logits.log_softmax(-1)[0]
    expected = sum(logits[place - 1, ids[place]].item() for place in range(count, len(ids)))
    assert item.target.log_prob == pytest.approx(expected, abs=1e-6)


ASK, ANSWER = "where is the town ?", " a small town"
CHAT_SHAPES = {
    "a pair": ((ASK, ANSWER), ASK),
    "a row": ({"prompt": ASK, "response": ANSWER}, ASK),
    "TRL's prompt and completion": ({"prompt": ASK, "completion": ANSWER}, ASK),
    "TRL's messages": (
        {"prompt": QUESTION, "completion": [{"role": "assistant", "content": ANSWER}]},
        f"<|user|>{ASK}\n<|assistant|>",
    ),
    "a chat with its answer": (
        {"messages": [*QUESTION, {"role": "assistant", "content": ANSWER}]},
        f"<|user|>{ASK}\n<|assistant|>",
    ),
    "messages of parts": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": text} for text in ("where is", "the town ?")]},
                {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
            ]
        },
        "<|user|>where is\nthe town ?\n<|assistant|>",
    ),
    "a part that is no text": (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "text": ASK}]}], "response": ANSWER},
        r"content of message 1 \(user\) to be a text",
    ),
    "a frame": (pd.DataFrame({"prompt": [ASK], "response": [ANSWER]}), ASK),
    "a frame with more columns": (pd.DataFrame({"prompt": [ASK], "completion": [ANSWER], "stars": [3]}), ASK),
    "a dataset": (Dataset.from_dict({"prompt": [ASK], "completion": [ANSWER]}), ASK),
    "a dict of lists": ({"prompt": [ASK], "response": [ANSWER]}, ASK),
    "an answer": ({"prompt": ASK, "answer": ANSWER}, "'answer'. Did you mean 'response'"),
    "a preference": ({"prompt": ASK, "chosen": ANSWER}, "'chosen'. Did you mean 'response'"),
    "a generated text": ([{"prompt": ASK, "generated_text": ANSWER}], "Did you mean 'response'"),
    "an answer in a frame": (pd.DataFrame({"prompt": [ASK], "answer": [ANSWER]}), "Did you mean 'response'"),
    "a text": ({"text": ASK}, "'text'. Did you mean 'prompt'"),
    "a frame of texts": (pd.DataFrame({"text": [ASK]}), "no column 'prompt' or 'messages'; it has: text"),
    "thinking": ({"messages": QUESTION, "enable_thinking": False}, "Did you mean 'chat_template_kwargs'"),
    "messages alone": (QUESTION, "Did you mean 'messages'"),
    "two answers": ({"prompt": ASK, "response": ANSWER, "completion": ANSWER}, "either a 'response' or a 'completion'"),
    "tools of a prompt": ({"prompt": ASK, "tools": TOOLS}, "give 'messages' instead"),
    "tools that are not read": ({"messages": QUESTION, "tools": TOOLS, "response": " a"}, "does not read 'tools'"),
    "tools as text": ({"messages": QUESTION, "tools": "find", "response": " a"}, "expected tools as a list"),
    "calls that are none": (
        {"messages": [*QUESTION, {"role": "assistant", "tool_calls": 3}]},
        "expected tool_calls as",
    ),
    "a call of nothing": (
        {"messages": [*QUESTION, {"role": "assistant", "tool_calls": [{}]}]},
        "expected tool_calls as",
    ),
    "a call of a number": (
        {"messages": [*QUESTION, {"role": "assistant", "tool_calls": [{"function": 3}]}]},
        "expected tool_calls as",
    ),
    "calls that are not written": (
        {"messages": [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [{"name": "find"}]}]},
        "leaves out tool calls: give the answer's text",
    ),
    "a column option": (pd.DataFrame({"prompt": [ASK]}), "text_column names a column of texts"),
}


@pytest.mark.parametrize("shape", CHAT_SHAPES)
def test_every_chat_is_the_right_exchange_or_one_sentence(shape):
    data, expected = CHAT_SHAPES[shape]
    named = {"text_column": "prompt"} if shape == "a column option" else {}
    if "<|" not in expected and expected != ASK:
        with pytest.raises(ExpoundError, match=expected):
            expound.attribute(chatting(), data, "random", **named)
        return
    (item,) = expound.attribute(chatting(), data, "random")
    assert (item.exchange.prompt, item.response) == (expected, ANSWER)


def test_a_prompt_that_begins_with_bos_has_it_once(caplog):
    model = chatting()
    made = model.processing_class
    made.add_special_tokens({"bos_token": "<|endoftext|>"})
    made._tokenizer.post_processor = families.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", made.bos_token_id)]
    )
    assert made("a film").input_ids[0] == made.bos_token_id
    plain, rendered = (model.encode([(f"{start}a film", " is dull")]) for start in ("", "<|endoftext|>"))
    assert torch.equal(plain.inputs["input_ids"], rendered.inputs["input_ids"])
    assert torch.equal(plain.content, rendered.content)
    assert "the prompt begins with <|endoftext|>, which the tokenizer adds: it is read once" in caplog.messages
