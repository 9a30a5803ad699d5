"""One adapter a dataset: its rows as prompts, or a reason."""
