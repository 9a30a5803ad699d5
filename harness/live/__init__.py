"""What a probe brought back as cassettes, contract and fingerprint."""
