#!/bin/sh
# Dump the database once a day and keep a week of dumps; with the argument `once`, make one dump and end.
# How to restore one: docs/how-to/back-up-and-restore.md
set -eu
cd "$BACKUPS"

dump() (
    exec 9<.
    flock 9  # one by hand while the daily one runs
    file="shop-$(date -u +%Y%m%dT%H%M%SZ).sql.gz"
    rm -f ./*.part*
    # A restore leaves no table of a later version, which its migration could not create again.
    mariadb-dump --single-transaction --no-tablespaces --host="$MYSQL_HOST" --user="$MYSQL_USER" \
        --add-drop-database --databases "$MYSQL_DATABASE" > shop.part
    gzip shop.part
    mv shop.part.gz "$file"
    find . -name 'shop-*.sql.gz' -mtime +6 -delete
)

if [ "${1:-}" = once ]; then
    dump
    exit
fi
while :; do
    find . -name 'shop-*.sql.gz' -mmin -1440 | grep -q . || dump
    sleep 60
done
