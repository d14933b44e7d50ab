"""A corpus of any size: explained part by part, and summed up."""
