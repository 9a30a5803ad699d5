"""The same as `python -m harness cassettes`."""

import sys

from harness.cassettes.record import main

sys.exit(main())
