"""Text and token ids of each model family, both ways."""
