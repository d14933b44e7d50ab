"""expound.load() with saved folders of every head, with models, and with damaged folders."""

import importlib
import json

import huggingface_hub
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import expound
import families
from expound import Batch, ExplainedModel, ExpoundError
from expound.cli import main
from small import PAIRS, uneven


def save_model(folder, family="bert", head="SequenceClassification", with_processor=True, **changes):
    if head == "QuestionAnswering":
        changes = {"num_labels": 2} | changes
    model = families.tiny(family, head, **changes)
    model.save_pretrained(folder)
    if with_processor:
        families.processor(family).save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("family", "head", "changes", "task"),
    [
        ("bert", "SequenceClassification", {}, "classification"),
        ("roberta", "SequenceClassification", {}, "classification"),
        ("gpt2", "SequenceClassification", {}, "classification"),
        ("deberta-v2", "SequenceClassification", {"num_labels": 1}, "regression"),
        ("bert", "SequenceClassification", {"problem_type": "multi_label_classification"}, "multi_label"),
        ("distilbert", "QuestionAnswering", {}, "span"),
        ("vit", "ImageClassification", {}, "classification"),
    ],
)
def test_a_saved_folder(tmp_path, family, head, changes, task):
    original = save_model(tmp_path, family, head, **changes)
    model = expound.load(tmp_path, device="cpu")
    assert model.task.name == task
    assert model.modality == ("image" if family == "vit" else "text")
    assert not any(module.training for module in model.model.modules())
    examples = PAIRS if task == "span" else uneven(family)
    batch = model.encode(examples)
    expected = ExplainedModel(original, families.processor(family))
    with torch.no_grad():
        assert torch.equal(model(batch).logits, expected(expected.encode(examples)).logits)
    assert expound.load(model) is model
    assert len(expound.attribute(expound.load(str(tmp_path), device="cpu"), examples, "random")) == len(examples)


def test_a_model_stays_where_and_as_it_is(tmp_path):
    model = families.tiny("bert").train()
    loaded = expound.load(model, families.processor("bert"))
    assert loaded.model is model
    assert all(module.training for module in model.modules())
    for argument in ({"device": "cpu"}, {"dtype": "float64"}):
        with pytest.raises(ExpoundError, match="already loaded"):
            expound.load(model, **argument)
    save_model(tmp_path)
    beside = type(model).from_pretrained(tmp_path)
    assert expound.load(beside).tokenizer is not None


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", torch.float64])
def test_dtype(tmp_path, dtype):
    save_model(tmp_path)
    expected = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert expound.load(tmp_path, device="cpu", dtype=dtype).dtype == expected


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"device": "gpu"}, "expected a device that is here, as cpu, cuda or cuda:1, got gpu"),
        ({"device": "cuda:99"}, "expected a device that is here.*got cuda:99"),
        ({"dtype": "foo"}, "unknown floating point type 'foo'.*bfloat16"),
        ({"dtype": "int8"}, "unknown floating point type 'int8'"),
    ],
)
def test_no_such_device_or_type(tmp_path, argument, message):
    save_model(tmp_path)
    with pytest.raises(ExpoundError, match=message):
        expound.load(tmp_path, **argument)


def test_without_a_tokenizer_ids_still_work(tmp_path):
    save_model(tmp_path, with_processor=False)
    model = expound.load(tmp_path, device="cpu")
    assert model.processing_class is None
    assert model.predict(Batch.from_ids(torch.tensor([[5, 6]]))).shape == (1,)
    with pytest.raises(ExpoundError, match="without a tokenizer"):
        model.encode(["small"])
    pictures = tmp_path / "pictures"
    save_model(pictures, "vit", with_processor=False)
    with pytest.raises(ExpoundError, match="image processor"):
        expound.load(pictures, device="cpu").encode(uneven("vit"))


@pytest.mark.parametrize("place", ["/nowhere/at/all", "./nowhere", "../nowhere", "runs/of/nowhere"])
def test_a_missing_folder(place):
    with pytest.raises(ExpoundError, match="there is no model at"):
        expound.load(place)


def test_a_missing_path_is_never_looked_up_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExpoundError, match="there is no model at"):
        expound.load(tmp_path.relative_to(tmp_path) / "gone")


def test_a_folder_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_model(tmp_path / "model")
    assert expound.load("~/model", device="cpu").labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    with pytest.raises(ExpoundError, match="there is no model at"):
        expound.load("~/other")


def test_an_empty_folder_and_a_folder_without_weights(tmp_path):
    with pytest.raises(ExpoundError, match="no model could be loaded"):
        expound.load(tmp_path)
    save_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ExpoundError, match="weights"):
        expound.load(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\x00" * 100, None], ids=["empty", "zeros", "half"])
def test_broken_weights(tmp_path, damage):
    save_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000] if damage is None else damage)
    with pytest.raises(ExpoundError, match="weights"):
        expound.load(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"model_type": "not known"}'])
def test_a_broken_configuration(tmp_path, text):
    save_model(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ExpoundError, match=r"no model could be loaded|config.json is no JSON"):
        expound.load(tmp_path)


@pytest.mark.parametrize("head", ["NextSentencePrediction"])
def test_a_head_that_cannot_be_explained(tmp_path, head):
    model = save_model(tmp_path, head=head)
    with pytest.raises(ExpoundError, match="head is not explained"):
        expound.load(tmp_path)
    with pytest.raises(ExpoundError, match="no head to explain"):
        expound.load(model)


def test_an_encoder_with_a_decoder_is_refused():
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    widths = {"vocab_size": 60, "d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 20}
    model = hf.BartForSequenceClassification(hf.BartConfig(**sizes, **widths))
    with pytest.raises(ExpoundError, match="alone, and not XLNet, got Bart"):
        expound.load(model)


def test_missing_weights_of_the_head(tmp_path):
    save_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("classifier")}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ExpoundError, match=r"classifier\.bias"):
        expound.load(tmp_path)


def test_a_classifier_loaded_as_a_language_model_is_named_and_not_called_incomplete(tmp_path):
    save_model(tmp_path, "gpt2")
    with pytest.raises(
        ExpoundError, match=r"a classifier, .* without --task generation \(task='generation'\)"
    ) as error:
        expound.load(tmp_path, task="generation")
    assert "incomplete" not in str(error.value)
    with pytest.raises(ExpoundError, match=r"a classifier, .* without --template and --labels"):
        expound.load(tmp_path, task="prompt", template="{text} :", labels=["a", "b"])


def test_weights_of_another_shape(tmp_path):
    save_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["intermediate_size"] = 64
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExpoundError, match="weights"):
        expound.load(tmp_path)


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(ExpoundError, match="Valid choices: classification"):
        ExplainedModel(families.tiny("bert"), task="classify")


@pytest.mark.parametrize("head", ["SequenceClassification", "Seq2SeqLM"])
def test_encoders_with_decoders_are_refused_by_name_but_for_what_they_say(head, tmp_path):
    config = hf.T5Config(vocab_size=60, d_model=8, num_layers=1, num_heads=2, d_ff=8, d_kv=4)
    made = getattr(hf, f"AutoModelFor{head}").from_config(config)
    made.save_pretrained(tmp_path)
    with pytest.raises(ExpoundError, match=f"{type(made).__name__}, an encoder with a decoder"):
        expound.load(tmp_path)
    if head == "SequenceClassification":
        with pytest.raises(ExpoundError, match="by a language modeling head"):
            expound.load(tmp_path, task="generation")


def test_xlnet_is_refused():
    config = hf.XLNetConfig(vocab_size=60, d_model=8, n_layer=1, n_head=2, d_inner=8)
    with pytest.raises(ExpoundError, match="got XLNetForSequenceClassification"):
        ExplainedModel(hf.XLNetForSequenceClassification(config))


@torch.no_grad()
def test_a_model_that_answers_with_tuples_by_default():
    model = ExplainedModel(families.tiny("bert"), families.processor("bert"))
    batch = model.encode(uneven("bert"))
    expected = model(batch).logits
    model.config.return_dict = False
    assert torch.equal(model(batch).logits, expected)


def test_a_model_says_what_it_is(tmp_path):
    save_model(tmp_path, id2label={0: "bad", 1: "fair", 2: "good"})
    shown = repr(expound.load(tmp_path, device="cpu"))
    assert shown == f"ExplainedModel({tmp_path}: classification; bad, fair, good; bert; up to 130 tokens; cpu)"


def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch, caplog):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ExpoundError, match=r"no folder my-model; the hub .* cannot be reached, and its cache has none"):
        expound.load("my-model", task="generation")
    assert "Retrying" not in caplog.text
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False


OWN_CLASS = """
import torch
from torch import nn
from transformers import BertConfig, BertModel, BertPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

class Averaging(BertPreTrainedModel):
    config_class = BertConfig

    def __init__(self, config):
        super().__init__(config)
        self.bert, self.head = BertModel(config, add_pooling_layer=False), nn.Linear(config.hidden_size, 3)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, **kwargs):
        states = self.bert(input_ids, attention_mask, inputs_embeds=inputs_embeds).last_hidden_state
        real = attention_mask[..., None].to(states)
        return SequenceClassifierOutput(logits=self.head((states * real).sum(1) / real.sum(1)))
"""


def test_a_class_of_ones_own_is_known_by_the_code_saved_with_it_or_by_its_task(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_class.py").write_text(OWN_CLASS)
    own_class = importlib.import_module("own_class")
    model = own_class.Averaging(families.tiny("bert", num_labels=3).config).eval()
    tokenizer = families.tokenizer("bert")
    with pytest.raises(ExpoundError, match=r"no head to explain: .* or the task of a class of your own"):
        expound.load((model, tokenizer))
    own_class.Averaging.register_for_auto_class("AutoModelForSequenceClassification")
    model.save_pretrained("saved")
    tokenizer.save_pretrained("saved")
    with pytest.raises(ExpoundError, match=r"--model MODULE:NAME.* trust_remote_code"):
        expound.load("saved")
    text = "the plot is dull"
    inputs = tokenizer(text, return_tensors="pt")
    expected = model(inputs["input_ids"], inputs["attention_mask"]).logits.softmax(-1).flatten().tolist()
    saved = expound.load("saved", trust_remote_code=True)
    for explained in (saved, expound.load((model, tokenizer), task="classification")):
        for method in ("occlusion", "integrated_gradients"):
            (item,) = expound.attribute(explained, [text], method)
            assert item.target.probability == pytest.approx(max(expected), rel=1e-5)
    (tmp_path / "pairs.py").write_text(
        "import own_class\nfrom transformers import AutoTokenizer\n"
        "pair = (own_class.Averaging.from_pretrained('saved').eval(), AutoTokenizer.from_pretrained('saved'))\n"
    )
    words = ["explain", text, "--model", "pairs:pair", "--task", "classification", "--methods", "occlusion", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)
