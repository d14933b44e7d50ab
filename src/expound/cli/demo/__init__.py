"""`expound demo`: reviews, and citations of a small language model."""
