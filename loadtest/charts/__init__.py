"""Charts, timelines, exported reports and terminal output."""
