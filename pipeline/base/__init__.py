"""Exact JSON and money, whole files, locks, processes and redaction: what every package stands on."""
