"""Management commands of the verification."""
