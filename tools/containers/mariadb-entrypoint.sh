#!/bin/sh
# What docker-entrypoint.sh of the image does with the variables that docker-compose.yml sets.
set -eu
[ "${1#-}" = "$1" ] || set -- mariadbd "$@"
if [ "$1" = mariadbd ]; then
    shift
    if [ ! -d /var/lib/mysql/mysql ]; then
        mariadb-install-db --datadir=/var/lib/mysql --skip-test-db --auth-root-authentication-method=normal >/dev/null
        cat >/tmp/init.sql <<SQL
CREATE DATABASE IF NOT EXISTS \`$MARIADB_DATABASE\`;
CREATE USER '$MARIADB_USER'@'%' IDENTIFIED BY '$MARIADB_PASSWORD';
GRANT ALL ON \`$MARIADB_DATABASE\`.* TO '$MARIADB_USER'@'%';
CREATE USER 'healthcheck'@'localhost' IDENTIFIED BY 'healthcheck';
CREATE USER 'healthcheck'@'127.0.0.1' IDENTIFIED BY 'healthcheck';
SQL
        set -- "$@" --init-file=/tmp/init.sql
    fi
    set -- mariadbd --bind-address=0.0.0.0 --skip-name-resolve "$@"
fi
exec "$@"
