"""What a whole run costs beside a bare loop."""
