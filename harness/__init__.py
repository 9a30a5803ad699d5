"""The contract harness: goldens, cassettes, emulator, attestation.

It may import `pipeline`, never the other way round. Its programs start with `python -m harness NAME`.
"""
