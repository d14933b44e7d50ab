"""expound: train transformers whose explanations are good, attribute their outputs, and measure the attributions."""

import logging
from typing import Any

import lazy_loader

from expound.explainers.map_metric import set_metric_loader

# the names and their modules are in __init__.pyi; each is imported on first use, since torch takes two seconds
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _load_metric(spec: str) -> Any:
    from expound.metrics import metric  # noqa: PLC0415

    return metric(spec)


set_metric_loader(_load_metric)
# transformers imports bitsandbytes, which warns about optional kernels, and about every layer in every pass.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
