"""Web pages to explore explanations, an API that cites, and the base of further pages."""

import lazy_loader

# the names and their modules are in __init__.pyi; each is imported on first use, since torch takes two seconds
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
