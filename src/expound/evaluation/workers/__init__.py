"""Workers that execute tasks: local processes, or a Ray cluster."""
