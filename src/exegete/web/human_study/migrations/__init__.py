"""The steps from one schema of studies to the next."""
