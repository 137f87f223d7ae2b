"""``python -m ddpfix``: see :mod:`ddpfix.cli`."""

import sys

from ddpfix.cli import main

sys.exit(main())
