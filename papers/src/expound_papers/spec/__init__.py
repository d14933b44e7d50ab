"""Study files: schema, reading, checks with line numbers, and addresses of data and models."""
