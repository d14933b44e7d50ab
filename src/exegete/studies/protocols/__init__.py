"""What else a judgement finds out about a model: a function each, by name in `registry`."""
