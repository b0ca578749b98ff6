"""Idempotency keys as the database stores them."""

import hashlib


def digest(key: str) -> str:
    """Return the SHA-256 of an idempotency key, which every database compares alike."""
    return hashlib.sha256(key.encode()).hexdigest()
