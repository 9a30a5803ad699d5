"""From what came over the wire to proven ids, or a reason."""
