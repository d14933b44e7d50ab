"""Training an explainer by the student that it teaches: the outer gradient (SMaT, IvRA) and its protocols."""
