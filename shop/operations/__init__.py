"""Live state of the operations page, read once for all viewers in bounded time."""
