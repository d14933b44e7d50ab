"""Passes through the user's model: what is recorded, replaced or skipped during a forward pass."""
