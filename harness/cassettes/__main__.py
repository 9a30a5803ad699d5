"""Record the emulator's cassettes.

python -m harness.cassettes record
"""

import sys

from harness.cassettes.record import main

sys.exit(main())
