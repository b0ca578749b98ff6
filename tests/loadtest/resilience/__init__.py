"""Scheduled jobs on workers that fail, and experiments on a whole shop."""

EVERY = 1.0
"""Seconds between two scheduled times of a job."""
