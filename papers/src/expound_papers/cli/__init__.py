"""`expound study`: its commands, studies opened, and their output."""
