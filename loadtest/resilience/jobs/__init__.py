"""Scheduled work under faults: several beats and workers, killed and stopped at random."""

TTL = 2.0
"""Seconds that the lease of a run lives unrenewed."""
EVERY = 1.0
"""Seconds between two scheduled times."""
READY = "This machine is at work."
"""What a worker or a beat writes to its log when it is."""
