"""Real engines measured: agreement, kills, routes, states, speculation."""
