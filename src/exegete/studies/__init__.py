"""Many examples or runs, one table."""

from exegete.studies.compare.compare import compare
from exegete.studies.compare.comparison import Comparison

__all__ = ["Comparison", "compare"]
