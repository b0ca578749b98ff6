"""What each page costs: a buyer's five minutes, and the pages of staff in a shop that has grown."""

OPEN_TABS, CUSTOMERS = 10_000, 50
READERS, ZIPPED = "anonymous home", "anonymous home, compressed"
TABS, SIGN_INS = f"{OPEN_TABS:,} open tabs", f"{CUSTOMERS} sign-ins at once"
WITH, WITHOUT = "five minutes with sign-in", "five minutes without sign-in"
