"""Entry point of `python -m exegete`, the command line."""

import sys

from exegete.cli import main

sys.exit(main())
