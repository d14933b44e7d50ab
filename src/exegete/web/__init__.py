"""Pages for people: explore explanations, browse results, and rank explanations blind."""

from exegete.web.app import create_app
from exegete.web.settings import Limits
from exegete.web.site import Site

__all__ = ["Limits", "Site", "create_app"]
