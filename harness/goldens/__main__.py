"""Write or check the tiny target's goldens.

python -m harness.goldens
"""

import sys

from harness.goldens.refresh import main

sys.exit(main())
