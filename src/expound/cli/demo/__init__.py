"""`expound demo`: reviews, and answers of a chat model."""
