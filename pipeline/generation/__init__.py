"""Asking engines under a ledger, a budget and a breaker."""
