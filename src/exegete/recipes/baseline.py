"""Ordinary fine-tuning, which every other method is compared with."""

from __future__ import annotations

from exegete.recipes.base import Recipe


def baseline() -> Recipe:
    """Fine-tune a model in the ordinary way: the baseline of every other training method.

    Texts, pairs, regressions, questions on a context and images: the data says which.

    Example: exegete train baseline --model bert-base-uncased --data sst:data/sst --epochs 2 --max-length 64
    --output-dir runs/sst
    """
    return Recipe(name="baseline", paper="")
