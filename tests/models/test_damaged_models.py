"""A model folder that is damaged, incomplete or contradicts itself is refused in one line that says where."""

import json
import os
import pickle
import shutil

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import expound
import families
from expound import ExpoundError
from expound.models.loading.checkpoint import check_vocabulary
from expound.recipes import RECIPES

CONFIG, TOKENIZER, OPTIONS = "config.json", "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def intact_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    families.tiny("bert").save_pretrained(folder)
    families.processor("bert").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(intact_folder, tmp_path):
    return shutil.copytree(intact_folder, tmp_path / "model")


def set_keys(file, **changes):
    def change(folder):
        content = json.loads((folder / file).read_text()) | changes
        (folder / file).write_text(json.dumps(content))

    return change


def set_content(file, text):
    return lambda folder: (folder / file).write_bytes(text)


def truncate_file(file, size):
    return lambda folder: os.truncate(folder / file, size)


def change_weights(change):
    def damage(folder):
        save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def apply_all(*changes):
    def change(folder):
        for each in changes:
            each(folder)

    return change


def remove_files(*files):
    return lambda folder: [(folder / file).unlink() for file in files]


def shrink_vocabulary(folder):
    whole = json.loads((folder / TOKENIZER).read_text())
    whole["model"]["vocab"] = dict(list(whole["model"]["vocab"].items())[:40])
    (folder / TOKENIZER).write_text(json.dumps(whole))


def add_word(folder):
    whole = json.loads((folder / TOKENIZER).read_text())
    whole["model"]["vocab"]["zebra"] = 5000
    (folder / TOKENIZER).write_text(json.dumps(whole))


class Run:
    def __reduce__(self):
        return os.mkdir, ("executed",)


DAMAGES = {
    "config is null": (set_content(CONFIG, b"null"), r"config.json.*object"),
    "config is a list": (set_content(CONFIG, b"[]"), r"config.json.*object"),
    "config is a number": (set_content(CONFIG, b"3"), r"config.json.*object"),
    "config is torn": (truncate_file(CONFIG, 30), r"config.json.*JSON"),
    "config is no text": (set_content(CONFIG, b"\xff\xfe{}"), r"config.json"),
    "model_type is a list": (set_keys(CONFIG, model_type=[]), r"config.json: model_type"),
    "id2label is a list": (set_keys(CONFIG, id2label=[]), r"config.json: id2label"),
    "id2label is a word": (set_keys(CONFIG, id2label="x"), r"config.json: id2label"),
    "id2label has a gap": (set_keys(CONFIG, id2label={"0": "a", "1": "b", "5": "c"}), r"config.json: id2label"),
    "too few labels": (set_keys(CONFIG, id2label={"0": "a"}), r"config.json contradicts.*classifier"),
    "dtype zz": (set_keys(CONFIG, dtype="zz"), r"config.json: dtype"),
    "dtype 3": (set_keys(CONFIG, dtype=3), r"config.json: dtype"),
    "torch_dtype zz": (set_keys(CONFIG, torch_dtype="zz"), r"config.json: torch_dtype"),
    "vocabulary too small": (set_keys(CONFIG, vocab_size=10), r"config.json contradicts.*word_embeddings"),
    "no vocabulary": (set_keys(CONFIG, vocab_size=0), r"config.json: vocab_size"),
    "vocabulary is a word": (set_keys(CONFIG, vocab_size="x"), r"config.json: vocab_size"),
    "layers -1": (set_keys(CONFIG, num_hidden_layers=-1), r"config.json: num_hidden_layers"),
    "no layer": (set_keys(CONFIG, num_hidden_layers=0), r"config.json: num_hidden_layers"),
    "layers is null": (set_keys(CONFIG, num_hidden_layers=None), r"config.json: num_hidden_layers"),
    "a layer fewer": (set_keys(CONFIG, num_hidden_layers=1), r"no place for.*layer\.1"),
    "layers more": (set_keys(CONFIG, num_hidden_layers=5), r"lacks weights.*layer\.2"),
    "width": (set_keys(CONFIG, hidden_size=64), r"config.json contradicts"),
    "no width": (set_keys(CONFIG, hidden_size=0), r"config.json: hidden_size"),
    "no head": (set_keys(CONFIG, num_attention_heads=0), r"config.json: num_attention_heads"),
    "heads -4": (set_keys(CONFIG, num_attention_heads=-4), r"config.json: num_attention_heads"),
    "activation": (set_keys(CONFIG, hidden_act="zz"), r"config.json: hidden_act"),
    "activation is null": (set_keys(CONFIG, hidden_act=None), r"config.json: hidden_act"),
    "architectures": (set_keys(CONFIG, architectures=[3]), r"config.json: architectures"),
    "padding": (set_keys(CONFIG, pad_token_id=999), r"config.json: pad_token_id"),
    "epsilon": (set_keys(CONFIG, layer_norm_eps="x"), r"config.json: layer_norm_eps"),
    "quantization": (set_keys(CONFIG, quantization_config=[]), r"config.json: quantization_config"),
    "an encoder that is a decoder": (set_keys(CONFIG, is_decoder=True), r"config.json: is_decoder"),
    "chunks": (set_keys(CONFIG, chunk_size_feed_forward=7), r"config.json: chunk_size"),
    "weights are empty": (set_content(WEIGHTS, b""), r"header"),
    "weights are torn": (truncate_file(WEIGHTS, 50_000), r"incomplete"),
    "no weights": (remove_files(WEIGHTS), r"safetensors"),
    "weights lack a layer": (
        change_weights(lambda w: {k: v for k, v in w.items() if "layer.1" not in k}),
        r"lacks.*layer\.1",
    ),
    "weights lack the head": (
        change_weights(lambda w: {k: v for k, v in w.items() if "classif" not in k}),
        r"lacks.*classif",
    ),
    "weights left over": (
        change_weights(lambda w: w | {"bert.encoder.layer.7.x": torch.ones(2)}),
        r"no place for.*layer\.7",
    ),
    "weights of another size": (
        change_weights(lambda w: w | {"classifier.weight": torch.ones(3, 5)}),
        r"contradicts.*classif",
    ),
    "NaN where fused attention hides it": (
        change_weights(lambda w: {k: v * torch.nan if "query" in k else v for k, v in w.items()}),
        r"query.*NaN",
    ),
    "whole numbers": (
        change_weights(lambda w: {k: v.int() for k, v in w.items()}),
        r"model.safetensors.*whole numbers",
    ),
    "index is null": (apply_all(remove_files(WEIGHTS), set_content(INDEX, b"null")), r"index.json"),
    "index of nothing": (
        apply_all(remove_files(WEIGHTS), set_content(INDEX, b'{"weight_map": null}')),
        r"could be loaded",
    ),
    "tokenizer is null": (set_content(TOKENIZER, b"null"), r"tokenizer.json"),
    "tokenizer is {}": (set_content(TOKENIZER, b"{}"), r"no tokenizer"),
    "tokenizer is []": (set_content(TOKENIZER, b"[]"), r"tokenizer.json"),
    "tokenizer is torn": (truncate_file(TOKENIZER, 500), r"tokenizer.json"),
    "tokenizer's options are null": (set_content(OPTIONS, b"null"), r"tokenizer_config.json"),
    "tokenizer's class": (set_keys(OPTIONS, tokenizer_class=3), r"tokenizer_config.json: tokenizer_class"),
    "tokenizer's length is a word": (
        set_keys(OPTIONS, model_max_length="x"),
        r"tokenizer_config.json: model_max_length",
    ),
    "tokenizer's length": (set_keys(OPTIONS, model_max_length=0), r"model_max_length 0"),
    "tokenizer's padding token": (set_keys(OPTIONS, pad_token=[]), r"no tokenizer.*pad_token"),
    "no tokenizer.json": (remove_files(TOKENIZER), r"no tokenizer"),
    "no vocabulary at all": (
        apply_all(remove_files(TOKENIZER), set_keys(OPTIONS, tokenizer_class="BertTokenizer")),
        r"knows no word",
    ),
    "letters without words": (shrink_vocabulary, r"not whole"),
    "more words than embeddings": (add_word, r"'zebra' with id 5000.*300"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_it_is_refused_by_file_and_key(folder, name):
    damage, said = DAMAGES[name]
    damage(folder)
    with pytest.raises(ExpoundError, match=said) as error:
        expound.load(folder, device="cpu")
    message = str(error.value)
    assert str(folder) in message
    assert "\n" not in message
    assert len(message.replace(str(folder), "FOLDER")) <= 300


def test_the_folder_itself_is_fine(folder):
    assert expound.load(folder, device="cpu").predict(expound.load(folder, device="cpu").encode(["a film"])).shape == (
        1,
    )


def test_pickled_weights_are_never_unpickled_and_it_is_said_how_to_convert_them(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Run()))
    with pytest.raises(ExpoundError, match=r"pickled weights.*never read.*convert: python -c"):
        expound.load(folder, device="cpu")
    assert not (folder / "executed").exists()


def test_the_conversion_that_the_message_gives_works(folder, tmp_path):
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(ExpoundError) as error:
        expound.load(folder, device="cpu")
    code = str(error.value).partition('python -c "')[2].partition('"')[0]
    code = code.replace("OLD", str(folder)).replace("NEW", str(tmp_path / "new"))
    exec(code, {})
    families.processor("bert").save_pretrained(tmp_path / "new")
    expound.load(tmp_path / "new", device="cpu")


@pytest.mark.parametrize("name", ["a layer fewer", "weights lack the head", "weights left over"])
def test_what_is_asked_for_is_explained_all_the_same(folder, name):
    DAMAGES[name][0](folder)
    model = expound.load(folder, device="cpu", allow_incomplete_weights=True)
    assert expound.attribute(model, "a film", "saliency")[0].scores.any()


def test_weights_of_pretraining_heads_are_no_contradiction(folder):
    extra = {"cls.predictions.bias": torch.ones(3), "bert.embeddings.position_ids": torch.arange(130)}
    change_weights(lambda w: w | extra)(folder)
    expound.load(folder, device="cpu")


def test_a_model_that_is_handed_over_is_looked_at_too():
    model = families.tiny("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.key.weight[0, 0] = torch.nan
    with pytest.raises(ExpoundError, match=r"layer\.1\.attention\.self\.key\.weight"):
        expound.load(model, families.processor("bert"))


def test_tokenizers_that_are_whole_pass():
    for family in families.TEXT:
        check_vocabulary(family, families.processor(family), families.VOCABULARY)


def test_a_byte_level_tokenizer_without_its_merges_is_not_whole(tmp_path):
    families.processor("gpt2").save_pretrained(tmp_path)
    whole = json.loads((tmp_path / TOKENIZER).read_text())
    whole["model"]["merges"] = []
    (tmp_path / TOKENIZER).write_text(json.dumps(whole))
    torn = hf.AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(ExpoundError, match="not whole"):
        check_vocabulary("it", torn, families.VOCABULARY)


def test_a_pickled_adapter_is_never_unpickled_and_the_conversion_works(folder, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    base = hf.AutoModelForSequenceClassification.from_pretrained(folder)
    peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS")).save_pretrained(tmp_path / "adapter")
    monkeypatch.chdir(tmp_path / "adapter")
    torch.save(load_file("adapter_model.safetensors"), "adapter_model.bin")
    os.remove("adapter_model.safetensors")
    with pytest.raises(ExpoundError, match=r"adapter holds pickled weights") as error:
        expound.load(tmp_path / "adapter", device="cpu")
    exec(str(error.value).partition('python -c "')[2].partition('"')[0], {})
    expound.load(tmp_path / "adapter", device="cpu")
    with open("adapter_config.json", "w") as file:
        file.write("{")
    with pytest.raises(ExpoundError, match="adapter"):
        expound.load(tmp_path / "adapter", device="cpu")


def test_training_starts_from_no_pickle_either(folder):
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Run()))
    data = expound.load_data("generated?size=20")
    with pytest.raises(ExpoundError, match="pickled weights"):
        RECIPES["baseline"]().train(folder, data, data, folder.parent / "run")
    assert not (folder.parent / "run").exists()
