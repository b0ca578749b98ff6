"""The database engine of MySQL and MariaDB, named in `shop.settings.base`; see base.py."""
