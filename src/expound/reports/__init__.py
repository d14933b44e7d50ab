"""Explanations and tables as terminal text, HTML, pictures and LaTeX; draws numbers without computing any."""
