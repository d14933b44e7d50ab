"""A method, a metric, an objective and a reader of one's own for exegete: copy the package and change what they do."""
