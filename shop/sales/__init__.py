"""Sales: queries, the lock of a sale's stock, purchase requests and waiting slots."""
