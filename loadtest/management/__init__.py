"""Management commands of the lab."""
