"""The contract harness: goldens, cassettes, emulator, attestation. May import `pipeline`, never the other way round."""
