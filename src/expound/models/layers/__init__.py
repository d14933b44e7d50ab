"""Parts of layers in all families, and backward passes through them by other rules."""
