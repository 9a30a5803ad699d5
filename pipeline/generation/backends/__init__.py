"""What answers a prompt: a hosted API, an engine server, or a model in this process."""
