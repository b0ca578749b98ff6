"""The database engine that `shop.settings.base` names for MySQL and MariaDB: see base.py."""
