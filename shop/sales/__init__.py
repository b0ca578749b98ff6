"""Sales: queries, the lock of a sale's stock, customer quotas and waiting slots."""
