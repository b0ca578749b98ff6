"""Recorded histories and their checker."""
