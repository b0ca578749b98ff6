"""One purchase, from admission to COMMIT."""
