"""Scheduled work that runs once per scheduled time."""
