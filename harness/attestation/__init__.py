"""The attestation made: pytest plugin, REQUIRED, canaries, statement, signature."""
