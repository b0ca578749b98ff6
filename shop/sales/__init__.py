"""Sales: queries and the lock that protects a sale's stock."""
