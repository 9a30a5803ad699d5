"""OpenRouter's dialect over the tiny target, whose true ids are known."""
