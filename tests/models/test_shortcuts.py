"""Models that break each shortcut: they are explained by the plain pass, as the Hugging Face model alone answers."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from transformers.modeling_outputs import CausalLMOutputWithPast, SequenceClassifierOutput

import expound
from causal import causal
from expound.models.checks import check_pairwise_mask
from expound.models.generation.model import GeneratingModel
from expound.models.perturbation import run
from families import SENTENCES, processor, tiny

POOLINGS = {
    "mean": lambda head, states, keep: (states * keep).sum(1) / keep.sum(1),
    "max": lambda head, states, keep: states.masked_fill(keep == 0, -1e4).amax(1),
    "attention": lambda head, states, keep: (head.scorer(states).masked_fill(keep == 0, -1e4).softmax(1) * states).sum(
        1
    ),
    "last": lambda head, states, keep: states[torch.arange(len(states)), keep[:, :, 0].long().sum(1) - 1],
}


class Pooled(hf.BertForSequenceClassification):
    """A classifier that reads all positions, in one of the ways above."""

    pooling = "mean"

    def __init__(self, config):
        super().__init__(config)
        self.scorer = torch.nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, **kwargs):
        states = self.bert(input_ids, attention_mask, inputs_embeds=inputs_embeds).last_hidden_state
        pooled = POOLINGS[self.pooling](self, states, attention_mask[..., None].to(states))
        return SequenceClassifierOutput(logits=self.classifier(pooled))


class LooksBack(hf.LlamaForCausalLM):
    """A language model whose head also reads the mean of all states so far, which no cache of keys and values has."""

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, logits_to_keep=0, **kwargs):
        kwargs |= {"attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        output = self.model(input_ids=input_ids, **kwargs)
        states = output.last_hidden_state
        real = (
            torch.ones_like(states[..., :1]) if attention_mask is None else attention_mask[:, -states.shape[1] :, None]
        )
        mixed = states + (states * real).cumsum(1) / real.cumsum(1).clamp(min=1)
        kept = logits_to_keep if isinstance(logits_to_keep, torch.Tensor) else slice(-logits_to_keep, None)
        return CausalLMOutputWithPast(logits=self.lm_head(mixed[:, kept]), past_key_values=output.past_key_values)


@torch.enable_grad()
def multiply_input_by_gradient(model, encoded, target):
    embeddings = model.get_input_embeddings()(encoded["input_ids"]).detach().requires_grad_()
    logits = model(inputs_embeds=embeddings, attention_mask=encoded["attention_mask"]).logits
    logits[0, target].backward()
    return logits[0].detach(), (embeddings * embeddings.grad).sum(-1)[0, 1:-1].detach()


@torch.no_grad()
def test_heads_of_ones_own_are_explained_where_they_read():
    text, tokenizer = SENTENCES[0], processor("bert")
    for name in POOLINGS:
        torch.manual_seed(0)
        model = Pooled(tiny("bert").config).double().eval()
        model.pooling = name
        loaded = expound.load((model, tokenizer))
        logits, expected = multiply_input_by_gradient(model, tokenizer(text, return_tensors="pt"), 1)
        found = expound.attribute(loaded, [text], "input_x_gradient", target=1)[0]
        torch.testing.assert_close(torch.tensor(found.token_scores[0][1:-1]).double(), expected, rtol=1e-5, atol=1e-7)
        assert found.prediction.probability == pytest.approx(float(logits.softmax(-1).max()), rel=1e-6), name
        # Every word deleted, one by one, by hand.
        words = text.split()
        whole = logits.softmax(-1)[1]
        found = expound.attribute(loaded, [text], "occlusion?perturbation=remove", target=1)[0]
        for number in range(len(words)):
            rest = tokenizer(" ".join(words[:number] + words[number + 1 :]), return_tensors="pt")
            drop = whole - model(**rest).logits.softmax(-1)[0, 1]
            assert found.scores[0][number] == pytest.approx(float(drop), rel=1e-4, abs=1e-6), (name, number)


@torch.no_grad()
def test_forwards_that_return_tuples_and_dicts_are_read():
    tokenizer, plain = processor("bert"), tiny("bert")
    expected = expound.attribute(expound.load((plain, tokenizer)), [SENTENCES[0]], "input_x_gradient")[0].scores

    def make(wrap):
        class OwnBert(hf.BertForSequenceClassification):
            def forward(self, input_ids=None, attention_mask=None, **kwargs):
                return wrap(super().forward(input_ids, attention_mask).logits)

        model = OwnBert(plain.config).eval()
        model.load_state_dict(plain.state_dict())
        return expound.load((model, tokenizer))

    wraps = {tuple: lambda logits: (None, logits), dict: lambda logits: {"logits": logits}, None: lambda logits: logits}
    for wrap in wraps.values():
        found = expound.attribute(make(wrap), [SENTENCES[0]], "input_x_gradient")[0]
        torch.testing.assert_close(torch.tensor(found.scores), torch.tensor(expected))
    with pytest.raises(expound.ExpoundError, match="expected a forward that returns logits"):
        expound.attribute(make(lambda logits: {"scores": logits}), [SENTENCES[0]])


@torch.no_grad()
def test_a_language_model_that_looks_back_shares_and_skips_nothing(monkeypatch):
    plain = causal("llama").model
    model = GeneratingModel(LooksBack(plain.config).double().eval())
    model.model.load_state_dict(plain.state_dict())
    monkeypatch.setattr(run, "run_prefix_tree", lambda *_: pytest.fail("beginnings were shared"))
    prompt, response = list(range(5, 25)), [30, 31, 32]
    batch = model.batch([prompt], [response])
    keep = (~torch.eye(batch.length, dtype=torch.bool)[batch.content[0]])[:, None]
    found = model.score_perturbed(batch, keep, torch.tensor([[0, 3]]))[:, 0]
    for number in range(len(prompt)):
        ids = torch.tensor([prompt[:number] + prompt[number + 1 :] + response])
        scores = model.model(ids).logits[0, -4:-1].log_softmax(-1)
        assert float(found[number]) == pytest.approx(float(scores.gather(1, ids[0, -3:, None]).sum()), rel=1e-9)


def test_attention_fades_only_where_a_mask_of_numbers_is_added_and_no_window_is_lost():
    fading = {"bert": {}, "distilbert": {}, "llama": {}, "qwen2": {}, "gpt2": {}, "mistral": {"sliding_window": None}}
    windows = {"mistral": "sliding_window", "gemma3_text": "sliding_window", "modernbert": "local_attention"}
    for family, changes in fading.items():
        model = expound.load(tiny(family, **changes), processor(family))
        assert not check_pairwise_mask(model, model.encode(SENTENCES)), family
    model = expound.load(tiny("deberta-v2"), processor("deberta-v2"))
    assert "takes no weights per position" in check_pairwise_mask(model, model.encode(SENTENCES[:1]))
    for family, window in windows.items():
        model = expound.load(tiny(family, **{window: 32}), processor(family))
        assert not check_pairwise_mask(model, model.encode(["it rains"])), family
        assert "tokens in windows" in check_pairwise_mask(model, model.encode([" ".join(SENTENCES)])), family
    # A model that ignores the mask adds nothing.
    model = expound.load(tiny("bert"), processor("bert"))
    model.model.bert._create_attention_masks = lambda *_, **__: (None, None)
    assert check_pairwise_mask(model, model.encode([SENTENCES[0]]))
