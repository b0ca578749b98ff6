"""The database engine that `shop.settings` names for MySQL and MariaDB: see base.py."""
