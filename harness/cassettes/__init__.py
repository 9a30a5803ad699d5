"""Recorded exchanges: recorded, scrubbed, replayed, and held to the digests of this tree."""
