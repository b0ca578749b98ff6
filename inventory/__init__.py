"""Products and stock: what there is to sell, and every change of it."""
