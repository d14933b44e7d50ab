"""Web pages to explore explanations, browse results and run blind human studies."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.web.app import create_app
    from expound.web.explore.service import Explorer
    from expound.web.settings import Limits
    from expound.web.site import Site
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["Explorer", "Limits", "Site", "create_app"]
