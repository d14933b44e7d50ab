"""Web pages to explore explanations, browse results, chat about documents and run blind human studies."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.web.app import create_app
    from exegete.web.settings import Limits
    from exegete.web.site import Site
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["Limits", "Site", "create_app"]
