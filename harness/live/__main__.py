"""Make cassettes, contract and fingerprint of a probe.

python -m harness.live
"""

import sys

from harness.live.live import main

sys.exit(main())
