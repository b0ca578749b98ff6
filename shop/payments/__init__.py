"""Payments and the simulated gateway."""
