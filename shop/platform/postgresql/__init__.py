"""The database engine of PostgreSQL, named in `shop.settings.base`; see base.py."""
