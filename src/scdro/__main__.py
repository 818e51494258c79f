"""`python -m scdro` is the `scdro` command."""

import sys

from scdro.cli import main

sys.exit(main())
