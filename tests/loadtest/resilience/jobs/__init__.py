"""Scheduled jobs on several beats and workers that are killed and stopped by tests."""

TTL = 2.0
"""Seconds of the lease of a job run."""
EVERY = 1.0
"""Seconds between two scheduled times."""
READY = "This machine is ready."
"""The line that a worker or a beat writes to its log when it is ready."""
