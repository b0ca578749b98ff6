"""The benchmark of a purchase over HTTP, beside a shop built as the tutorials build it."""
