"""Many methods on many examples of one model, judged by many metrics: one resumable comparison."""
