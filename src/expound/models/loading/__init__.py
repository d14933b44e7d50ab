"""Loading of checkpoints as explained models, and the checks that they pass first."""
