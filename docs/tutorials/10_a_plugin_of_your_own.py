# %% [markdown]
# # Your own method as a plugin package
#
# A method is one class with a card. A package names it in an entry point; after `pip install`, exegete knows it by
# its id in Python, on the command line, in study files and on the pages. [examples/plugin](../contribute/plugin.md)
# has a metric, an objective and a data format, too.
#
# ## The method
#
# The score of a word here: the length of the gradient at its embedding, times the length of the embedding to a power.
# `EmbeddingGradient` asks for one formula, `scores_from_gradient`. Other methods subclass
# `exegete.explainers.Explainer` and write `scores(model, batch, target)`, which returns [B, L] for B examples of L
# positions; the class of
# [examples/plugin](../contribute/plugin.md) does. Either way, the base class finds the target, zeroes special tokens
# and padding, and puts the model back as it was.
#
# The card's `name` is the id of the entry point. Its `family` is one of control, gradients, attention, decomposition,
# perturbation, search, interactions, learned and prompted. Its `unit` says what a score is; `{output}` stands for the
# number that is explained, a logit, a probability or a log-probability.

# %%
from pathlib import Path

package = Path("plugin")
(package / "src/my_methods").mkdir(parents=True, exist_ok=True)
(package / "src/my_methods/__init__.py").write_text('"""Methods of my own."""\n')
(package / "src/my_methods/gradient_length.py").write_text('''
"""Gradient length: a plain product of two lengths."""

from dataclasses import dataclass
from typing import ClassVar

from exegete.explainers import EmbeddingGradient, MethodCard


@dataclass(frozen=True)
class GradientLength(EmbeddingGradient):
    """Length of the gradient of the target's logit, times the embedding's to a power. Unsigned.

    `power`: of the embedding's length.
    """

    power: float = 1.0
    card: ClassVar = MethodCard(
        name="gradient_length", family="gradients", differentiable=True, cost="F + B",
        unit="slope of the {output} × length of the embedding",
    )

    def scores_from_gradient(self, slope, embeddings):
        """‖∂f_c/∂E‖ · ‖E‖^power of slope and embeddings [B, L, d]: [B, L]."""
        return slope.norm(dim=-1) * embeddings.norm(dim=-1) ** self.power
''')
(package / "pyproject.toml").write_text("""
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "my-methods"
version = "0.1"
dependencies = ["exegete"]

[project.entry-points."exegete.explainers"]
gradient_length = "my_methods.gradient_length:GradientLength"
""")

# %% [markdown]
# ## A method with attention and a gradient
#
# A `SinglePass` asks with `capture` for what the forward pass shall record, and makes scores of it in
# `scores_from_outputs`. It meets it in one of three forms:
#
# - `outputs.attentions`: for each layer [B, H, L, L], rows look and columns are looked at. It is there for every
#   model that has attention; of an encoder-decoder it is one map of the row (prompt, then response) for each decoder
#   layer.
# - `outputs.blocks`: only of encoder-decoders, every attention by itself, between the positions of its own sides:
#   [B, H, S, S], [B, H, T, T], [B, H, T, S]. The answer depends on these, so gradients are taken at them.
# - `model.scatter_attention(batch, maps)` lays maps of the shapes of the last `blocks` (whole layers: two blocks for
#   each decoder layer) out among all L positions, and gives those of other models back.
#   Do not call it with `outputs.attentions`.
#
# So `outputs.blocks or outputs.attentions`, then `scatter_attention`, works for encoders, decoders and both together. A
# method that does not apply to one raises `ExegeteError` with a sentence that says so.

# %%
(package / "src/my_methods/attention_slope.py").write_text('''
"""Attention slope: how much the last layer's attention to a position matters for the answer."""

from dataclasses import dataclass
from typing import ClassVar

from exegete.explainers import MethodCard, OutputExplainer, SinglePass, compute_gradients
from exegete.models import Capture


@dataclass(frozen=True)
class AttentionSlope(OutputExplainer, SinglePass):
    """Attention times its gradient, mean over heads, where the answer is read. Signed."""

    card: ClassVar = MethodCard(
        name="attention_slope", family="attention", signed=True, differentiable=True, cost="F + B",
        unit="attention × slope of the {output}",
    )
    capture: ClassVar = Capture(attentions=True)

    def passes(self, length):
        """One forward and one backward pass; a method that says no backward pass gets no gradients."""
        return 1.0, 1.0

    def scores_from_outputs(self, model, batch, outputs, target, *, keep_graph):
        """Σ_q readout(q) · mean_h (A ⊙ ∂f_c/∂A)[q, i], [B, L]."""
        last = outputs.blocks[-2:] or outputs.attentions[-1:]  # a decoder's own and cross-attention are one layer
        slopes = compute_gradients(self.score(model, outputs, target), last, keep_graph=keep_graph)
        maps = [(block * slope).mean(1) for block, slope in zip(last, slopes, strict=True)]
        rows = sum(model.scatter_attention(batch, maps))  # [B, L, L]
        readout = model.readout_weights(batch, target).to(rows.dtype)[:, None]  # [B, 1, L], 0 at padding
        return (readout @ rows)[:, 0].masked_fill(~batch.attended, 0.0)
''')
with (package / "pyproject.toml").open("a") as file:
    file.write('attention_slope = "my_methods.attention_slope:AttentionSlope"\n')

# %% [markdown]
# ## Install it
#
# You would run `pip install -e plugin`. Here it goes into a folder of its own, so that your environment stays as it
# is.

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
import exegete
from exegete.training import train_baseline

train, dev, test = (exegete.load_data("generated", split, size=4000) for split in ("train", "dev", "test"))
arguments = {"learning_rate": 2e-3, "num_train_epochs": 4, "use_cpu": True, "disable_tqdm": True}
train_baseline("tiny", train, dev, "baseline", arguments=arguments, masked_share=0.1)
model = exegete.load("baseline", device="cpu")
# %%
assert {"gradient_length", "attention_slope"} <= set(exegete.list_methods()["name"])

# %%
exegete.attribute(model, [test[0]], method="gradient_length?power=0.5")

# %%
rows = test.select(range(40))
exegete.compare(
    model, rows, ["gradient_length", "saliency", "decompx_linear", "random"], ["aopc_comprehensiveness", "auc"]
)

# %% [markdown]
# ## Test it
#
# `exegete.testing` has the tests that every method of exegete passes: batches and padding, gradients, data types,
# errors, what a decoder (GPT-2) and an encoder-decoder (T5) say, and that the model is as it was. A method that does
# not apply to generated text passes by raising `ExegeteError`. Inherit them with one fixture:

# %%
Path("test_gradient_length.py").write_text("""
import exegete
import pytest
from exegete.testing import ExplainerContract


class TestGradientLength(ExplainerContract):
    @pytest.fixture
    def explainer(self):
        return exegete.explainer("gradient_length")


class TestAttentionSlope(ExplainerContract):
    @pytest.fixture
    def explainer(self):
        return exegete.explainer("attention_slope")
""")
command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_gradient_length.py"]
paths = os.pathsep.join(["installed", os.environ.get("PYTHONPATH", "")])
done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
print(done.stdout[-300:])
