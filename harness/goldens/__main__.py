"""The same as `python -m harness goldens`."""

import sys

from harness.goldens.extension import main

sys.exit(main())
