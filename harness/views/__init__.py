"""What a hosted API would show of true ids."""
