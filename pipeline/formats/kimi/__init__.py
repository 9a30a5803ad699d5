"""Kimi's format: control tokens, grammar, prompt, and the releases that share them."""
