from .base import Reader as Reader
from .base import Table as Table
from .registry import READERS as READERS
