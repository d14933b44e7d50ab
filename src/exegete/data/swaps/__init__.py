"""Words that can take another's place without changing what a text says: contractions, names, places, numbers."""

from exegete.data.swaps.find import KINDS, Swap, apply_swaps, find_swaps

__all__ = ["KINDS", "Swap", "apply_swaps", "find_swaps"]
