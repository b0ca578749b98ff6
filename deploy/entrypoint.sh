#!/bin/sh
# Before web, worker, consumer and beat: what an earlier process of this container counted is not counted again.
set -eu
if [ -n "${PROMETHEUS_MULTIPROC_DIR:-}" ]; then
    rm -rf "$PROMETHEUS_MULTIPROC_DIR"
    mkdir -p "$PROMETHEUS_MULTIPROC_DIR"
fi
exec "$@"
