"""Pages for people: explore explanations, browse results, and rank explanations blind."""
