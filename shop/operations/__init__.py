"""What the operations page shows: read once for all who look, in bounded time."""
