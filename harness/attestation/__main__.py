"""The same as `python -m harness attestation`."""

import sys

from harness.attestation.statement import main

sys.exit(main())
