"""Golden token sequences: of the tiny target, and of engines."""
