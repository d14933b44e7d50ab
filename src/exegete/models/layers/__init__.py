"""The parts of a transformer's layers, and passes whose derivatives follow rules."""
