"""The catalogue pages' cache."""
