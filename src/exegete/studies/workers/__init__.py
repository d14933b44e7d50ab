"""Where runs are worked on: local processes or a Ray cluster, and the locks that keep two from one run."""
