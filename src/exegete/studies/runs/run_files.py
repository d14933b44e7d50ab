"""The files in the folder of a finished run."""

FIGURES = "figures.json"
PREDICTIONS = "predictions.parquet"
RESULTS, CURVES = "results.parquet", "curves.parquet"
ATTRIBUTIONS, LAYERS = "attributions", "layers.parquet"
