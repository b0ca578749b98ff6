"""Products, their stock and the ledger of its changes."""
