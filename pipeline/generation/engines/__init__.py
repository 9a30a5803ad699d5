"""Clients of the engines and APIs that are asked."""
