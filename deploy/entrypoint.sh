#!/bin/sh
# Before web, worker, consumer and beat: what an earlier process of this container counted is not counted again.
set -eu
if [ -n "${PROMETHEUS_MULTIPROC_DIR:-}" ]; then
    rm -rf "$PROMETHEUS_MULTIPROC_DIR"
    mkdir -p "$PROMETHEUS_MULTIPROC_DIR"
fi
# Prometheus and the kubelet ask each container by its address.
if [ -n "${ALLOWED_HOSTS:-}" ]; then
    ALLOWED_HOSTS="$ALLOWED_HOSTS,$(hostname -I | xargs | tr ' ' ',')"
    export ALLOWED_HOSTS
fi
exec "$@"
