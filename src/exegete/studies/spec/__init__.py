"""Study files: their schema, how they are read, what they name, and errors that point at a line."""
