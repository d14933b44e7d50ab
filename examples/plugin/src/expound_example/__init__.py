"""An explainer, a metric, an objective with its recipe, and a reader for expound: copy the package and change it."""
