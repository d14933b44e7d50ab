"""One training run: its options, data, trainer, checkpoints and evaluation."""
