"""What came over the wire, read as it came: bodies, streams, token ids."""
