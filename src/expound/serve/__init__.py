"""Web pages to explore explanations, an API that cites, and the base of further pages."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.serve.app import create_app
    from expound.serve.explore.service import Explorer
    from expound.serve.settings import Limits
    from expound.serve.site import Application, Site
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["Application", "Explorer", "Limits", "Site", "create_app"]
