"""Load tests of a sale: plan, buyers, runs, verdicts."""
