"""Our reading of completions beside the engines' own parsers."""
