"""Programs that print a number. The contract suite imports none of them."""
