#!/bin/sh
# What docker-entrypoint.sh of the image does with the variables that docker-compose.yml sets.
set -eu
{
    echo "dataDir=/data"
    echo "dataLogDir=${ZOO_DATA_LOG_DIR:-/datalog}"
    echo "tickTime=${ZOO_TICK_TIME:-2000}"
    echo "initLimit=${ZOO_INIT_LIMIT:-5}"
    echo "syncLimit=${ZOO_SYNC_LIMIT:-2}"
    echo "autopurge.purgeInterval=${ZOO_AUTOPURGE_PURGEINTERVAL:-0}"
    echo "4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-srvr}"
    echo "admin.enableServer=${ZOO_ADMINSERVER_ENABLED:-true}"
    echo "standaloneEnabled=true"
    for server in $ZOO_SERVERS; do echo "$server"; done
} >/conf/zoo.cfg
echo "${ZOO_MY_ID:-1}" >/data/myid
exec "$@"
