"""Many examples or runs, one table."""
