"""What staff and the schedule do to sales; audit and alerts."""
