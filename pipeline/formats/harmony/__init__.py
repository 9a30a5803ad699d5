"""gpt-oss's harmony format: every text stands behind a header."""
