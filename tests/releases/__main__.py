"""``python -m tests.releases``."""

import sys

from tests.releases.command import main

sys.exit(main())
