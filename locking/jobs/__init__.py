"""Scheduled jobs that run once per scheduled time."""
