"""Many examples or runs, one table."""

from exegete.studies.compare import compare
from exegete.studies.comparison import Comparison

__all__ = ["Comparison", "compare"]
