"""Public chat datasets as prompts: one adapter a dataset, the sources they are read from, and their preparation."""
