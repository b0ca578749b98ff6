"""Logging, metrics, rate limits, database and Redis clients; no shop terms."""
