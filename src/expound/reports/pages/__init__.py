"""Pages of HTML and Markdown."""
