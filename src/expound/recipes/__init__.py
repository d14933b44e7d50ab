"""Recipes: how papers train models, one file each. A new one is a function in a file and a line in `registry.py`."""

import lazy_loader

# the names and their modules are in __init__.pyi; each is imported on first use, since torch takes two seconds
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
