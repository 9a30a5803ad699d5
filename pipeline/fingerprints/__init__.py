"""What a route does to text, learned from recorded exchanges."""
