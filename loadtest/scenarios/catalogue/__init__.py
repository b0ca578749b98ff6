"""The classic lock failures, one module each."""
