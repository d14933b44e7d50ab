"""Web pages to explore explanations, browse results and run blind human studies."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.web.app import create_app
    from exegete.web.explore.service import Explorer
    from exegete.web.settings import Limits
    from exegete.web.site import Site
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["Explorer", "Limits", "Site", "create_app"]
