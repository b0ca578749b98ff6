#!/bin/sh
# The image's script asks for a connection by TCP (--connect) and a loaded InnoDB (--innodb_initialized).
exec mariadb --protocol=tcp -h 127.0.0.1 -u healthcheck -phealthcheck -e 'SELECT 1' >/dev/null
