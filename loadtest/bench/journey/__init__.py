"""What each page costs: a buyer's five minutes, and the pages of staff in a shop that has grown."""
