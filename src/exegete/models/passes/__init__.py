"""Passes through a user's model: what is captured or put in, and everything restored after."""
