"""One training run on transformers' Trainer: data, objectives, checkpoints, evaluation, stopping with nothing lost."""
