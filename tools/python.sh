#!/bin/sh
# Runs its arguments with a Python that can serve the project:
#   sh tools/python.sh [--install] script [argument ...]
# With --install, root on Debian gets one from its packages when there is none.

wanted='import ensurepip, sqlite3, ssl, sys, venv; sys.exit(sys.version_info < (3, 11))'

run() {
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        # Tried, not looked up: a pyenv shim is on the PATH and fails when it is run.
        if "$python" -c "$wanted" >/dev/null 2>&1; then
            exec "$python" "$@"
        fi
    done
}

install=no
if [ "$1" = --install ]; then
    install=yes
    shift
fi
run "$@"
if [ "$install" = yes ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Python from Debian's packages ..."
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends python3 python3-venv >/dev/null
    run "$@"
fi
echo "No usable Python: version 3.11 or later with its venv module is needed" \
    "(on Debian: apt-get install -y python3 python3-venv)." >&2
exit 1
