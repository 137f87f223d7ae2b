"""``python -m ddpfix``: see :mod:`ddpfix.cli.main`."""

import sys

from ddpfix.cli.main import main

sys.exit(main())
