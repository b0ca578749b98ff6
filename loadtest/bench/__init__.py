"""Benchmarks of locks, purchases, cached values and idempotency keys."""
