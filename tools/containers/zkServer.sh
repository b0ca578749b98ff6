#!/bin/sh
# The image's script, as far as docker-compose.yml calls it.
set -eu
jars=$(find /usr/share/java -name '*.jar' | tr '\n' ':')
case "$1" in
start-foreground)
    # shellcheck disable=SC2086
    exec java ${JVMFLAGS:-} -cp "$jars" org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg
    ;;
status)
    exec java -Xmx64m -cp "$jars" org.apache.zookeeper.client.FourLetterWordMain localhost 2181 srvr | grep -q '^Mode:'
    ;;
esac
