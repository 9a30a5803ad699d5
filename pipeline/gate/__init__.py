"""The lock before money and GPU time: the attestation, the tree, the environment, and whether a job may run."""
