"""Language models, with an encoder or without, explained in the text that they generate."""
