"""How the answer moves with parts of the input: passes of dual numbers, one for each part and none for an output."""

from __future__ import annotations

from exegete.models.passes.capture import Capture

CAPTURE = Capture(differentiable_twice=True)
