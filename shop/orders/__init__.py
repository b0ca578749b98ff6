"""Orders after they were placed."""
