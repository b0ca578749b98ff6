"""Queued sales: reserved in Redis with the answer, written to the database in batches soon after.

    web       reserving    key, limit, stock and stream in one script; 202 or 303 to the ticket
    consumer  writing      a batch of entries: orders, allowances, one UPDATE of stock, the ledger
    both      loading      Redis filled from the ledger, compared with it and put right

The database keeps the last word: what Redis promised too much is refused where it is written, and
the ticket says so. docs/explanation/queued-sales.md has the states and what is promised at each.
"""
