"""The contract harness: goldens, cassettes, emulator, attestation.

It may import `pipeline`, never the other way round. Every program of it starts with `python -m harness NAME`.
"""
