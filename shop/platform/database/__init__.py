"""What the database engines of the shop share: stalls, sessions and their end."""
