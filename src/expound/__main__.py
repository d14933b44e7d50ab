"""Entry point of `python -m expound`, the command line."""

import sys

from expound.cli import main

sys.exit(main())
