# %% [markdown]
# # Your own method as a plugin package
#
# A method is one class with a card. A package registers it as an entry point. After `pip install`, expound finds it by
# its id in Python, on the command line, in studies and on the web pages. The package
# [examples/plugin](../contribute/plugin.md) also contains a metric, an objective and a data format.
#
# ## The method
#
# In this example, a word's score is the length of the gradient at its embedding, times the length of the embedding to
# a power. For methods of this kind, subclass `EmbeddingGradient` and write one formula, `scores_from_gradient`. For
# other methods, subclass `expound.explainers.Explainer` and write `scores(model, batch, target)`, which returns scores
# [B, L] for B examples of L positions; the class in [examples/plugin](../contribute/plugin.md) does so. A method whose
# passes serve several targets writes `compute(model, batch, targets, outputs=None)` instead, which returns a
# `TokenScores` for each of them. In all cases the base class resolves the target, sets the scores of special tokens and
# padding to zero, and restores the model's state.
#
# The card's `name` is the id of the entry point. Its `family` is one of control, gradients, attention, decomposition,
# perturbation, search, interactions, learned and prompted. Its `unit` describes a score; `{output}` is replaced by the
# name of the explained number: logit, probability or log-probability.

# %%
from pathlib import Path

package = Path("plugin")
(package / "src/my_methods").mkdir(parents=True, exist_ok=True)
(package / "src/my_methods/__init__.py").write_text('"""Methods of my own."""\n')
(package / "src/my_methods/gradient_length.py").write_text('''
"""Gradient length: the length of the gradient times the length of the embedding."""

from dataclasses import dataclass
from typing import ClassVar

from expound.explainers import EmbeddingGradient, MethodCard


@dataclass(frozen=True)
class GradientLength(EmbeddingGradient):
    """Length of the gradient of the target's logit, times the embedding's to a power. Unsigned.

    `power`: the exponent of the embedding's length.
    """

    power: float = 1.0
    card: ClassVar = MethodCard(
        name="gradient_length", family="gradients", differentiable=True, cost="F + B",
        unit="slope of the {output} × length of the embedding",
    )

    def scores_from_gradient(self, slope, embeddings):
        """Return ‖∂f_c/∂E‖ · ‖E‖^power [B, L] for the gradient `slope` and embeddings [B, L, d]."""
        return slope.norm(dim=-1) * embeddings.norm(dim=-1) ** self.power
''')
(package / "pyproject.toml").write_text("""
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "my-methods"
version = "0.1"
dependencies = ["expound"]

[project.entry-points."expound.explainers"]
gradient_length = "my_methods.gradient_length:GradientLength"
""")

# %% [markdown]
# ## A method with attention and a gradient
#
# A `SinglePass` method declares in `capture` what the forward pass has to record, in `gradient_points` where the
# gradient of the target's score is taken, and computes scores from both in `scores_from_outputs`. Attention comes in
# two forms:
#
# - `outputs.attentions`: one tensor [B, H, L, L] per layer; rows are queries and columns are keys. All models with
#   attention have it. For an encoder-decoder it is one map per decoder layer over the whole row of the batch (prompt,
#   then response).
# - `outputs.blocks`: encoder-decoders only. Each attention block separately, between the positions of its own sides:
#   encoder [B, H, S, S], decoder [B, H, T, T] and cross-attention [B, H, T, S]. The answer is computed from these
#   tensors, so take gradients with respect to them.
#
# `model.scatter_attention(batch, maps)` places maps of the shapes of the last `blocks` (whole layers: two blocks per
# decoder layer) at their positions among all L positions; maps of other models are returned unchanged. Do not call it
# with `outputs.attentions`.
#
# Using `outputs.blocks or outputs.attentions` and then `scatter_attention` therefore works for encoders, decoders and
# encoder-decoders. A method that does not apply to one of them raises `ExpoundError` with the reason.

# %%
(package / "src/my_methods/attention_slope.py").write_text('''
"""Attention slope: how much the prediction depends on the last layer's attention to a position."""

from dataclasses import dataclass
from typing import ClassVar

from expound.explainers import MethodCard, OutputExplainer, SinglePass
from expound.models import Capture


@dataclass(frozen=True)
class AttentionSlope(OutputExplainer, SinglePass):
    """Attention times its gradient, mean over heads, at the position where the prediction is read. Signed."""

    card: ClassVar = MethodCard(
        name="attention_slope", family="attention", signed=True, differentiable=True, cost="F + B",
        unit="attention × slope of the {output}",
    )
    capture: ClassVar = Capture(attentions=True)

    def passes(self, length):
        """Return one forward and one backward pass. Without a backward pass, no gradients are recorded."""
        return 1.0, 1.0

    def gradient_points(self, outputs):
        """Return the attention of the last layer."""
        # In an encoder-decoder, self-attention and cross-attention together are one decoder layer.
        return outputs.blocks[-2:] or outputs.attentions[-1:]

    def scores_from_outputs(self, model, batch, outputs, target, gradients):
        """Return Σ_q readout(q) · mean_h (A ⊙ ∂f_c/∂A)[q, i], [B, L]."""
        last = self.gradient_points(outputs)
        maps = [(block * gradient).mean(1) for block, gradient in zip(last, gradients, strict=True)]
        rows = sum(model.scatter_attention(batch, maps))  # [B, L, L]
        readout = model.readout_weights(batch, target).to(rows.dtype)[:, None]  # [B, 1, L], 0 at padding
        return (readout @ rows)[:, 0].masked_fill(~batch.attended, 0.0)
''')
with (package / "pyproject.toml").open("a") as file:
    file.write('attention_slope = "my_methods.attention_slope:AttentionSlope"\n')

# %% [markdown]
# ## Install it
#
# Usually you run `pip install -e plugin`. Here the package is installed into a separate folder, so that your
# environment does not change.

# %%
import os
import subprocess
import sys

options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--upgrade", "--target", "installed"]
subprocess.run([sys.executable, "-m", "pip", "install", *options, "./plugin"], check=True)
sys.path.insert(0, "installed")

# %% [markdown]
# ## Use it
# %%
import expound

train, dev, test = (expound.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
expound.train("tiny", (train, dev), "baseline", output_dir="baseline", options={"masked_share": 0.1}, args=arguments)
model = expound.load("baseline", device="cpu")
# %%
assert {"gradient_length", "attention_slope"} <= set(expound.list_methods()["name"])

# %%
expound.attribute(model, [test[0]], method="gradient_length?power=0.5")

# %%
examples = test.select(range(40))
methods = ["gradient_length", "saliency", "decompx_linear", "random"]
expound.compare(model, examples, methods, ["aopc_comprehensiveness", "rationale_auc"])

# %% [markdown]
# ## Test it
#
# `expound.testing` contains the contract tests that every method of expound passes. They check batches and padding,
# gradients, data types, errors, results on a decoder (GPT-2) and an encoder-decoder (T5), and that the model's state is
# restored. A method that does not apply to generated text passes by raising `ExpoundError`. Inherit the tests and
# define one fixture:

# %%
Path("test_gradient_length.py").write_text("""
import expound
import pytest
from expound.testing import ExplainerContract


class TestGradientLength(ExplainerContract):
    @pytest.fixture
    def explainer(self):
        return expound.explainer("gradient_length")


class TestAttentionSlope(ExplainerContract):
    @pytest.fixture
    def explainer(self):
        return expound.explainer("attention_slope")
""")
command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_gradient_length.py"]
paths = os.pathsep.join(["installed", os.environ.get("PYTHONPATH", "")])
result = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
print(result.stdout[-300:])
