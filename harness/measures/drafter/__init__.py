"""Drafters trained and evaluated end to end.

Guarantees: no prompt is both trained on and evaluated, and speculative answers are compared with the target's own.
Entry: `python -m harness drafter-demo`.

- `demo`: all stages for the tiny target or SmolLM2, a command each.
- `lossless`: speculative answers beside plain ones, on hundreds of prompts.
- `smollm`: SmolLM2 as a model directory.
"""
