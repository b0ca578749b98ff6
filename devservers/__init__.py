"""Private MariaDB, Redis and ZooKeeper servers for the demo, the tests and the lab."""
