from .app import create_app as create_app
from .explore.service import Explorer as Explorer
from .settings import Limits as Limits
from .site import Application as Application
from .site import Site as Site
