"""Models read from GGUF files equal transformers' own dequantized models, and save as ordinary folders."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoModelForCausalLM

import expound
from expound.cli import main
from expound.errors import ExpoundError
from expound.models.loading.gguf import find_gguf, load_gguf
from gguf_files import TEMPLATE, WIDTH, write_llama


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.Q4_K, Type.F16], ids=lambda kind: kind.name)
def test_logits_equal_transformers_own_dequantized_model_and_survive_saving(kind, tmp_path, monkeypatch):
    # Embeddings are read in parts of 100 rows, so that the vocabulary has several.
    monkeypatch.setattr("expound.models.loading.gguf.CHUNK_VALUES", 100 * WIDTH)
    file = write_llama(tmp_path / "tiny.gguf", kind)
    model, tokenizer = load_gguf(file, torch.float32)
    ids = tokenizer("the moth", return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(ids).logits
        reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
        assert torch.equal(logits, reference(ids).logits)
        model.save_pretrained(tmp_path / "folder")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32)
        assert torch.equal(logits, again(ids).logits)
    assert logits.std() > 1e-3
    assert tokenizer.chat_template == TEMPLATE


@pytest.mark.parametrize("tied", [True, False])
def test_output_weights_are_tied_exactly_if_the_file_has_none(tied, tmp_path):
    model, _ = load_gguf(write_llama(tmp_path / "tiny.gguf", Type.Q8_0, tied=tied), torch.bfloat16)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_file_that_is_cut_short_foreign_or_unknown_is_refused_in_one_sentence(tmp_path):
    whole = write_llama(tmp_path / "tiny.gguf", Type.Q8_0).read_bytes()
    for length in (2, 10, 200, len(whole) // 2, len(whole) - 40):
        (tmp_path / "short.gguf").write_bytes(whole[:length])
        with pytest.raises(ExpoundError, match=r"is cut short or damaged|is not a GGUF file"):
            load_gguf(tmp_path / "short.gguf", torch.float32)
    (tmp_path / "foreign.gguf").write_bytes(b"PK\3\4" + whole[4:])
    with pytest.raises(ExpoundError, match=r"is not a GGUF file: it begins with b'PK"):
        load_gguf(tmp_path / "foreign.gguf", torch.float32)
    (tmp_path / "unknown.gguf").write_bytes(whole.replace(b"llama", b"lhama"))
    with pytest.raises(ExpoundError, match="'lhama'"):
        load_gguf(tmp_path / "unknown.gguf", torch.float32)


def test_a_folder_means_its_only_gguf_file(tmp_path):
    assert find_gguf(tmp_path) is None
    (tmp_path / "a.gguf").touch()
    assert find_gguf(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ExpoundError, match=r"several GGUF files \(a.gguf, b.gguf\)"):
        find_gguf(tmp_path)
    (tmp_path / "config.json").touch()
    assert find_gguf(tmp_path) is None


def test_a_gguf_model_is_loaded_by_its_path_and_explained(tmp_path):
    file = write_llama(tmp_path / "tiny.gguf", Type.Q8_0)
    model = expound.load(file, task="generation", dtype="float64")
    chat = {"messages": [{"role": "user", "content": "the moth"}], "response": " the"}
    result = expound.attribute(model, [chat], method="input_x_gradient", unit="word")[0]
    assert np.abs(result.scores).sum() > 0
    assert expound.load(str(tmp_path), task="generation").model.dtype == torch.float32
    with pytest.raises(ExpoundError, match="holds a language model"):
        expound.load(file)
    with pytest.raises(ExpoundError, match="dequantized when it is loaded"):
        expound.load(file, task="generation", dtype="4bit")


def test_a_dry_run_counts_the_passes_of_a_gguf_model(tmp_path, capsys):
    file = write_llama(tmp_path / "tiny.gguf", Type.Q8_0)
    words = ["explain", "the moth", "--task", "generation", "--model", str(file), "--unit", "word", "--dry-run"]
    assert main([*words, "--max-new-tokens", "20"]) == 0
    assert "passes" in capsys.readouterr().out


def test_a_model_trained_from_a_gguf_file_is_saved_as_an_ordinary_folder(tmp_path):
    file = write_llama(tmp_path / "tiny.gguf", Type.Q8_0)
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(f'{{"prompt": "the moth {number}", "response": " thing"}}\n' for number in range(20)))
    words = ["train", "baseline", "--model", str(file), "--data", f"jsonl:{data}", "--epochs", "3", "--quiet"]
    assert main([*words, "--lr", "1e-3", "--output-dir", str(tmp_path / "run")]) == 0
    trained = expound.load(tmp_path / "run", task="generation")
    start = expound.load(file, task="generation")
    assert not torch.equal(trained.embedding.weight, start.embedding.weight)
