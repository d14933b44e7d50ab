"""Examples as batches of token ids or pixels, and labels as numbers."""
