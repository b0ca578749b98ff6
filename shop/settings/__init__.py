"""Settings modules: `base`, `production`, and `lab`, the default outside production."""
