"""What staff and the schedule do: restock, open and close sales, audit the stock, alert."""
