"""Queued sales: reserved in Redis before the response, written to the database in batches.

    reserve         checks key, limit and stock and adds an entry to the stream, in one script
    order_writer    writes a batch of entries: orders, quotas, one UPDATE of the stock, the ledger
    consumer        waits for entries and calls the order writer
    reconciliation  loads Redis from the ledger, compares the two and repairs Redis
    store           the only module that knows the keys in Redis

The database decides: it refuses what Redis promised in excess, and the reservation page says so.
docs/explanation/queued-sales.md describes the states and the promises of each.
"""
