"""Checkpoints on disk as explained models: what is read, checked and refused."""
