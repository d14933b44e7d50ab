"""Swaps of words that keep the meaning of a text: contractions, names, places, numbers."""

from expound.data.swaps.find import KINDS, Swap, apply_swaps, find_swaps

__all__ = ["KINDS", "Swap", "apply_swaps", "find_swaps"]
