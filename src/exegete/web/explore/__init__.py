"""The explorer: explain one input by many methods, and predict it again without parts of it."""
