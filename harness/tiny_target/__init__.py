"""A real small language model in Kimi's layout, trained by this repository."""
