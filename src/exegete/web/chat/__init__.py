"""The chat: where a model's answer about documents comes from, and how likely it is without parts of them."""
