"""The command line: one module a verb, and `main`, which starts them."""
