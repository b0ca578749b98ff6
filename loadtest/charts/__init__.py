"""Charts, timelines and exported reports."""
