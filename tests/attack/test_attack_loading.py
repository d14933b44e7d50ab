"""Model folders, adapters and GGUF files that name code, files elsewhere, endless patterns or more than they hold."""

from __future__ import annotations

import json
import os
import pickle
import struct
import time

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

import expound
from attacked import record_outcomes
from commands import save_model
from expound import ExpoundError
from expound.cli import main
from expound.models.loading.checkpoint import check_implementations
from expound.models.loading.gguf import load_gguf
from gguf_files import Type, write_llama
from test_attack_models import TEXT, require_short

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "model")


@pytest.fixture
def adapter(folder, tmp_path):
    """A LoRA adapter of the model in `folder`."""
    base = expound.load(folder, device="cpu").model
    target = tmp_path / "adapter"
    peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS")).save_pretrained(target)
    return target


def change_json(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def require_refused(folder, match, **options):
    with pytest.raises(ExpoundError, match=match) as error:
        expound.load(folder, device="cpu", **options)
    require_short(str(error.value).replace(str(folder), "FOLDER"))


def split_into(folder, file):
    """Moves the weights into a file and writes an index that names it, relative to the folder."""
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    if file.endswith(".safetensors"):
        save_file(weights, folder / file, metadata={"format": "pt"})
    else:
        torch.save(weights, folder / file)
    change = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, file)}
    (folder / INDEX).write_text(json.dumps(change))


@pytest.mark.parametrize("file", ["weights.bin", "weights.pt", "../outside.safetensors", "../outside.bin"])
def test_an_index_names_safetensors_of_its_own_folder_only(file, folder):
    with record_outcomes("names of weights", file) as counts:
        split_into(folder, file)
        require_refused(folder, "expected a .*safetensors file of the same folder")
        counts |= {"cases": 1, "refused": 1}


def test_a_configuration_cannot_name_pickled_weights_and_shards_are_still_read(folder):
    scores = expound.attribute(expound.load(folder, device="cpu"), TEXT, "saliency")[0].scores
    torch.save(load_file(folder / WEIGHTS), folder / "weights.bin")
    change_json(folder / "config.json", transformers_weights="weights.bin")
    require_refused(folder, "transformers_weights")
    change_json(folder / "config.json", transformers_weights=None)
    split_into(folder, "model-00001-of-00001.safetensors")
    again = expound.attribute(expound.load(folder, device="cpu"), TEXT, "saliency")[0].scores
    assert (again == scores).all()


@pytest.mark.parametrize(
    "values",
    [
        {"_attn_implementation": "evil/kernel"},
        {"attn_implementation": "evil/kernel@main:function"},
        {"_attn_implementation": {"": "evil/kernel"}},
        {"attn_implementation": "flash_attention_3"},
        {"experts_implementation": "evil/kernel"},
        {"experts_implementation": "sonicmoe"},
        {"text_config": {"attn_implementation": "evil/kernel"}},
    ],
    ids=str,
)
def test_no_configuration_reaches_the_loader_of_kernels(values, folder, monkeypatch):
    reached = []
    monkeypatch.setattr("transformers.modeling_utils.is_kernel", lambda name: reached.append(name) and False)
    with record_outcomes("code that a configuration names", next(iter(values))) as counts:
        change_json(folder / "config.json", **values)
        require_refused(folder, "_implementation: expected one of eager, ")
        assert not [name for name in reached if name and "/" in name]
        counts |= {"cases": 1, "refused": 1}


def test_parts_of_a_configuration_are_looked_at_and_ordinary_choices_pass():
    from transformers import LlavaConfig

    config = LlavaConfig()
    config._attn_implementation = {"text_config": "sdpa", "vision_config": "eager"}
    check_implementations("model", config)
    config.text_config._attn_implementation_internal = "evil/kernel"
    with pytest.raises(ExpoundError, match="evil/kernel"):
        check_implementations("model", config)


def test_remote_code_of_any_file_is_not_run(folder, tmp_path):
    trap = f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass Evil: pass\n"
    (folder / "evil.py").write_text(trap)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(trap)
    reference = dict.fromkeys(("AutoConfig", "AutoModelForSequenceClassification"), "evil.Evil")
    reference["AutoTokenizer"] = ["evil.Evil", "evil.Evil"]
    for file in ("config.json", "tokenizer_config.json"):
        change_json(folder / file, auto_map=reference, custom_generate="evil/repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        try:
            expound.load(folder, device="cpu")
        except ExpoundError as error:
            require_short(str(error).replace(str(folder), "FOLDER"))
    assert not (tmp_path / "ran").exists()


def test_no_adapter_is_unpickled_wherever_it_lies(adapter, folder, tmp_path):
    (adapter / "adapter_model.safetensors").rename(adapter / "kept")
    with (adapter / "adapter_model.bin").open("wb") as file:
        pickle.dump(Trap(tmp_path / "ran"), file)
    require_refused(adapter, "pickled")
    # transformers loads an adapter that lies beside a base model by itself.
    (adapter / "kept").rename(adapter / "adapter_model.safetensors")
    change_json(adapter / "adapter_config.json", base_model_name_or_path=str(folder))
    (folder / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_model.bin").rename(folder / "adapter_model.bin")
    require_refused(adapter, "pickled")
    assert not (tmp_path / "ran").exists()


ENDLESS = "(" * 3 + r".*" + r".*)+" * 3 + "x"


@pytest.mark.parametrize(
    "values",
    [
        {"target_modules": ENDLESS},
        {"target_modules": [ENDLESS]},
        {"exclude_modules": ENDLESS},
        {"modules_to_save": [ENDLESS]},
        {"layers_pattern": ENDLESS, "layers_to_transform": [0]},
        {"rank_pattern": {ENDLESS: 2}},
        {"alpha_pattern": {ENDLESS: 2}},
        {"target_modules": 3},
        {"megatron_config": {"a": 1}, "megatron_core": "this"},
        {"peft_type": "XLORA", "adapters": {"0": "evil/adapter"}},
        {"peft_type": "NONSENSE"},
        {"r": "many"},
        {"r": -1},
        {"lora_alpha": []},
    ],
    ids=lambda values: str(values)[:40],
)
def test_a_hostile_or_damaged_adapter_is_refused_in_one_line_and_at_once(values, adapter):
    with record_outcomes("damaged adapters", next(iter(values))) as counts:
        change_json(adapter / "adapter_config.json", **values)
        began = time.process_time()
        require_refused(adapter, "adapter")
        assert time.process_time() - began < 10
        counts |= {"cases": 1, "refused": 1}


def build_gguf(*fields, tensors=0, tail=b""):
    """A GGUF file with these fields (key, type, bytes), and the number of tensors that its header promises."""
    body = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields))
    for key, kind, value in fields:
        body += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
    return body + tail


ARCHITECTURE = (b"general.architecture", 8, struct.pack("<Q", 5) + b"llama")
HUGE = 1 << 33
DAMAGED = {
    "an array of 2^33 bytes": build_gguf(ARCHITECTURE, (b"a", 9, struct.pack("<IQ", 0, HUGE))),
    "an array of 2^33 texts": build_gguf(ARCHITECTURE, (b"a", 9, struct.pack("<IQ", 8, HUGE))),
    "arrays of arrays": build_gguf(ARCHITECTURE, (b"a", 9, struct.pack("<IQ", 9, 1) * 5000)),
    "a text of 2^63 bytes": build_gguf((b"a", 8, struct.pack("<Q", 1 << 63))),
    "a text that is no UTF-8": build_gguf((b"general.architecture", 8, struct.pack("<Q", 2) + b"\xff\xfe")),
    "a number as architecture": build_gguf((b"general.architecture", 4, struct.pack("<I", 7))),
    "an unknown type": build_gguf((b"a", 99, b"")),
    "2^60 fields": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
    "2^60 tensors": build_gguf(ARCHITECTURE, tensors=1 << 60),
    "no tensors": build_gguf(ARCHITECTURE),
    "a tensor of 2^40 values": build_gguf(
        ARCHITECTURE, tensors=1, tail=struct.pack("<Q1sIQIQ", 1, b"a", 1, 1 << 40, 0, 0)
    ),
    "a tensor of 2^31 dimensions": build_gguf(ARCHITECTURE, tensors=1, tail=struct.pack("<Q1sI", 1, b"a", 1 << 31)),
    "only a name": b"GGUF",
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_gguf_file_is_refused_in_one_line_and_at_once(what, tmp_path):
    with record_outcomes("damaged GGUF files", what) as counts:
        (tmp_path / "model.gguf").write_bytes(DAMAGED[what])
        began = time.process_time()
        require_refused(tmp_path / "model.gguf", "model.gguf", task="generation")
        assert time.process_time() - began < 5
        counts |= {"cases": 1, "refused": 1}


def test_numbers_of_a_gguf_file_that_its_tensors_contradict_are_refused(tmp_path):
    file = tmp_path / "model.gguf"
    write_llama(file, Type.Q8_0)
    original = file.read_bytes()
    load_gguf(file, torch.float32)
    with record_outcomes("damaged GGUF files", "sizes") as counts:
        for key in ("block_count", "embedding_length", "feed_forward_length", "attention.head_count"):
            at = original.index(f"llama.{key}".encode()) + len(f"llama.{key}") + 4
            for value in (3, 1 << 30, (1 << 32) - 1):
                file.write_bytes(original[:at] + struct.pack("<I", value) + original[at + 4 :])
                require_refused(file, "model.gguf", task="generation")
                counts.update(cases=1, refused=1)
        for end in range(8, len(original), len(original) // 12):
            file.write_bytes(original[:end])
            require_refused(file, "model.gguf", task="generation")
            counts.update(cases=1, refused=1)


@pytest.mark.parametrize("seed", [-1, 1 << 32, 1 << 63, 1 << 200])
def test_a_seed_that_no_generator_takes_is_told_in_one_line(seed, tmp_path, capsys):
    words = ["train", "baseline", "--config", "tiny", "--data", "generated?size=32", "--device", "cpu"]
    assert main([*words, "--seed", str(seed), "--output-dir", str(tmp_path / "run")]) == 2
    assert "expected a seed from 0 to 4294967295" in capsys.readouterr().err
