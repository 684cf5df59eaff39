"""The main program: `python -m chainrule` is the command line."""

import sys

from chainrule.cli import main

sys.exit(main())
