#!/bin/sh
# 15-local-resolvers.envsh of the image, what is mounted beside it, and 20-envsubst-on-templates.sh.
set -eu
if [ -n "${NGINX_ENTRYPOINT_LOCAL_RESOLVERS:-}" ]; then
    NGINX_LOCAL_RESOLVERS=$(awk '$1 == "nameserver" { print ($2 ~ ":") ? "[" $2 "]" : $2 }' /etc/resolv.conf | xargs)
    export NGINX_LOCAL_RESOLVERS
fi
for file in /docker-entrypoint.d/*.envsh; do
    [ ! -x "$file" ] || . "$file"
done
names=$(env | sed 's/=.*//; s/.*/${&}/' | xargs)
for template in /etc/nginx/templates/*.template; do
    [ ! -e "$template" ] || envsubst "$names" <"$template" >"${NGINX_ENVSUBST_OUTPUT_DIR:-/etc/nginx/conf.d}/$(basename "$template" .template)"
done
exec "$@"
