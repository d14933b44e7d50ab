"""Workers that execute the cells of a study: local processes, or tasks on a Ray cluster."""
