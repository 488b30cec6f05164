"""``python -m steerers`` is ``steerers``."""

import sys

from steerers.cli import main

sys.exit(main())
