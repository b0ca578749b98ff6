"""Benchmarks of locks, purchases and the journey of a buyer, and tests of other libraries."""
