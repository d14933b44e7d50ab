"""The grid of a study's runs, the execution of one, and the store that keeps finished ones."""
