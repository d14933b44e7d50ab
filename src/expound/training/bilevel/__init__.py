"""Training an explainer through the student that it teaches: the meta-gradient (SMaT, IvRA) and its protocols."""
