"""An explainer, a metric, an objective with its recipe, and a reader for exegete: copy the package and change it."""
