"""Probes of a route: committed requests whose answers tell what the route does to text."""
