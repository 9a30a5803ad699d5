"""Drafters and rows as other programs read them: SGLang, vLLM, speculators, SpecForge."""
