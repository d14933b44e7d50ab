from __future__ import annotations

import pytest
import torch
import transformers as hf

import expound
from expound import Batch
from expound.errors import ExpoundError
from expound.models.prompted import PromptedModel
from families import SENTENCES, TEXT, processor, tokenizer


def make_template(shots):
    blocks = [f"Text:{text}\nLabel:{label}" for text, label in shots]
    return "\n\n".join(["Is the review good ?", *blocks, "Text:{text}\nLabel:"])


SHOTS = [("a joy {really}", "P"), ("two dull hours", "N")]
TEMPLATE = make_template(SHOTS)
LABELS = {"negative": "N", "positive": "P"}
FAMILIES = ("llama", "mistral", "gpt2", "qwen2")
LENGTH = 130


def causal(family, **changes):
    config = hf.AutoConfig.for_model(family, **TEXT[family] | changes)
    torch.manual_seed(1)
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return expound.load(causal(request.param), processor("gpt2"), task="prompt", template=TEMPLATE, labels=LABELS)


def by_hand(model, text):
    """Return the probabilities of the labels from one unpadded forward pass on the prompt as it would be typed."""
    prompt = (
        f"Is the review good ?\n\nText:a joy {{really}}\nLabel:P\n\nText:two dull hours\nLabel:N\n\nText:{text}\nLabel:"
    )
    ids = torch.tensor([model.processing_class(prompt)["input_ids"]])
    vocabulary = model.processing_class.get_vocab()
    with torch.no_grad():
        last = model.model(input_ids=ids).logits[0, -1]
    return torch.stack([last[vocabulary["N"]], last[vocabulary["P"]]]).softmax(0)


def test_label_probabilities_are_those_of_a_forward_pass_by_hand(model):
    found = model.probabilities(model.encode(SENTENCES))
    expected = torch.stack([by_hand(model, text) for text in SENTENCES])
    assert expected.std(0).min() > 1e-4
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert model.labels == ("negative", "positive")


def test_only_the_text_is_content_and_the_prompt_stays(model):
    for perturbation in ["remove", "mask"]:
        texts = SENTENCES[:3]
        batch = model.encode(texts)
        ids = batch.inputs["input_ids"]
        for row, text in enumerate(texts):
            assert model.processing_class.decode(ids[row, batch.content[row]]).strip() == text
        gone = model.predict_perturbed(batch, torch.zeros(1, *ids.shape, dtype=torch.bool), perturbation)[0]
        prompt = [ids[row, batch.attended[row] & ~batch.content[row]] for row in range(len(texts))]
        if perturbation == "mask":
            prompt = [
                torch.where(batch.content[r], model.mask_id, ids[r])[batch.attended[r]] for r in range(len(texts))
            ]
        for row, rest in enumerate(prompt):
            with torch.no_grad():
                last = model.model(input_ids=rest[None]).logits[0, -1, model.task.ids]
            torch.testing.assert_close(gone[row], last.softmax(-1), atol=1e-5, rtol=1e-5)


def test_removed_words_leave_the_same_prompt_behind(model):
    for text in ["great", "éa joy", "one\ntwo"]:
        (batch, other) = (model.encode([one]) for one in (text, SENTENCES[0]))
        prompts = [b.inputs["input_ids"][0, b.attended[0] & ~b.content[0]].tolist() for b in (batch, other)]
        assert prompts[0] == prompts[1]
        assert batch.alignments[0].texts == (text,)
        assert [word.text for word in batch.alignments[0].words] == text.split()


@pytest.mark.parametrize(
    "method",
    [
        "saliency",
        "integrated_gradients?n_steps=5",
        "attention_rollout",
        "occlusion",
        "kernel_shap?n_samples=20",
        "random",
    ],
)
def test_every_kind_of_explainer_works_and_touches_the_text_only(model, method):
    for found in expound.attribute(model, SENTENCES[:2], method):
        words = [word.text for word, special in zip(found.tokens, found.special, strict=True) if not special]
        assert abs(found.token_scores[0][~torch.tensor(found.special).numpy()]).max() > 0
        assert abs(found.token_scores[0][torch.tensor(found.special).numpy()]).max() == 0
        assert len(words) < len(found.tokens) / 2
        assert found.target.text in LABELS


def test_occlusion_is_the_drop_by_hand(model):
    text = "dull story"
    found = expound.attribute(model, text, "occlusion", target="positive", perturbation="remove")[0]
    first_gone = by_hand(model, " story")[1]
    assert abs(found.scores[0, 0] - float(by_hand(model, text)[1] - first_gone)) < 1e-5


def test_too_long_a_text_is_cut_and_the_prompt_is_not(caplog):
    model = expound.load(causal("gpt2"), processor("gpt2"), task="prompt", template=TEMPLATE, labels=LABELS)
    long = " ".join(SENTENCES * 4)
    batch = model.encode([long, "short"])
    assert "1 of 2 texts do not fit" in caplog.text
    assert LENGTH - 3 <= int(batch.attended[0].sum()) <= LENGTH
    own = model.processing_class.decode(batch.inputs["input_ids"][0, batch.content[0]])
    assert long.startswith(own.strip())
    prompts = [batch.inputs["input_ids"][r, batch.attended[r] & ~batch.content[r]].tolist() for r in (0, 1)]
    assert prompts[0] == prompts[1]
    assert batch.alignments[0].truncated
    many = make_template(SHOTS * 12)
    crowded = expound.load(model.model, processor("gpt2"), task="prompt", template=many, labels=LABELS)
    with pytest.raises(ExpoundError, match="use a shorter template, fewer shots or documents"):
        crowded.encode(["short"])


def test_padding_after_the_prompt_is_refused(model):
    ids = torch.randint(5, 200, (2, 8))
    right = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    with pytest.raises(ExpoundError, match="on their left"):
        model.probabilities(Batch.from_ids(ids, right))
    left = model.probabilities(Batch.from_ids(ids.flip(1), right.flip(1)))
    torch.testing.assert_close(left[1:], model.probabilities(Batch.from_ids(ids.flip(1)[1:, 3:])))


def test_pairs_have_two_places():
    template = "{text}\nso {text_pair}\nAnswer:"
    model = expound.load(causal("llama"), processor("gpt2"), task="prompt", template=template, labels=["N", "P"])
    batch = model.encode([("a film", "a river"), ("two women", "rain")])
    for row, pair in enumerate([("a film", "a river"), ("two women", "rain")]):
        alignment = batch.alignments[row]
        assert [(w.segment, w.text) for w in alignment.words] == [
            (side, word) for side, text in enumerate(pair) for word in text.split()
        ]
    with pytest.raises(ExpoundError, match="has 2 place"):
        model.encode(["a film"])


def test_special_tokens_that_the_tokenizer_adds_come_first():
    from tokenizers import processors

    own = hf.PreTrainedTokenizerFast(
        tokenizer_object=type(tokenizer("gpt2")._tokenizer).from_str(tokenizer("gpt2")._tokenizer.to_str()),
        bos_token="<|end|>", eos_token="<|end|>", unk_token="<|end|>",
    )  # fmt: skip
    own._tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", own.bos_token_id)]
    )
    model = expound.load(causal("llama"), own, task="prompt", template=TEMPLATE, labels=LABELS)
    batch = model.encode(["a film"])
    assert batch.inputs["input_ids"][0, 0] == own.bos_token_id
    assert not batch.content[0, 0]
    assert model.task.ids == [own.get_vocab()["N"], own.get_vocab()["P"]]


def test_bad_prompts_are_errors():
    cases = [
        ({"labels": ["N", "wonderful"]}, "'wonderful' does not continue .* by one token"),
        ({"labels": ["N"]}, "at least two different labels"),
        ({"labels": {"no": "N", "never": "N"}}, "are the same token"),
        ({"template": "no place"}, "{text} once"),
        ({"template": "{text} {text}"}, "{text} once"),
        ({"template": None}, "go together"),
        ({"task": None}, "go together"),
        ({"task": "promt"}, "Did you mean 'prompt'"),
    ]
    for changes, message in cases:
        given = {"task": "prompt", "template": TEMPLATE, "labels": LABELS} | changes
        with pytest.raises(ExpoundError, match=message):
            expound.load(causal("gpt2"), processor("gpt2"), **given)


def test_an_encoder_cannot_be_prompted():
    from families import tiny

    with pytest.raises(ExpoundError, match="needs a causal language model"):
        PromptedModel(tiny("bert"), processor("bert"), TEMPLATE, LABELS)


def train_adapter(model, folder, ids, modules_to_save=None):
    """Train an adapter with PEFT for two optimizer steps, save it, and return the model."""
    from peft import LoraConfig, get_peft_model

    task = "SEQ_CLS" if modules_to_save else "CAUSAL_LM"
    lora = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type=task))
    optimizer = torch.optim.SGD([p for p in lora.parameters() if p.requires_grad], lr=5.0)
    for _ in range(2):
        loss = lora(input_ids=ids).logits.float().logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    lora.save_pretrained(folder)
    return lora.eval()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_trained_adapter_changes_the_answer_and_loads_by_its_folder(tmp_path):
    pytest.importorskip("peft")
    causal("llama").save_pretrained(tmp_path / "base")
    tokenizer("gpt2").save_pretrained(tmp_path / "base")
    prompt = {"task": "prompt", "template": TEMPLATE, "labels": LABELS, "device": "cpu"}
    plain = expound.load(tmp_path / "base", **prompt)
    batch = plain.encode(SENTENCES[:3])
    before = plain.probabilities(batch)
    base = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    trained = train_adapter(base, tmp_path / "adapter", batch.inputs["input_ids"])
    loaded = expound.load(tmp_path / "adapter", **prompt)
    after = loaded.probabilities(batch)
    assert (after - before).abs().max() > 1e-3
    by_peft = expound.load(trained, tokenizer("gpt2"), **{k: v for k, v in prompt.items() if k != "device"})
    torch.testing.assert_close(after, by_peft.probabilities(batch))
    for method in ("integrated_gradients?n_steps=3", "occlusion", "attention_last"):
        changed, same = (expound.attribute(m, SENTENCES[0], method, target=1)[0].scores for m in (loaded, plain))
        assert abs(changed - same).max() > 1e-6


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adapter_of_a_classifier_brings_its_head(tmp_path):
    pytest.importorskip("peft")
    causal("llama").save_pretrained(tmp_path / "base")
    tokenizer("gpt2").save_pretrained(tmp_path / "base")
    base = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", pad_token_id=0)
    trained = train_adapter(base, tmp_path / "adapter", torch.tensor([[5, 6, 7]]), ["score"])
    loaded = expound.load(tmp_path / "adapter", device="cpu")
    batch = loaded.encode(SENTENCES[:2])
    expected = expound.load(trained, tokenizer("gpt2")).probabilities(batch)
    torch.testing.assert_close(loaded.probabilities(batch), expected)
    with pytest.raises(ExpoundError, match="which has no classification head"):
        expound.load(tmp_path / "base", device="cpu")
