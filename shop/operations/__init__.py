"""Live state and statistics of the operations page, read once for all viewers in bounded time."""
