#!/bin/sh
# Restarts workers one after the other, and begins with the next one when the last has joined and all partitions have
# owners. Each argument after the app is a worker and the port of its probes:
#   rolling.sh shop:app streamworker-worker@1=8081 streamworker-worker@2=8082 streamworker-worker@3=8083
# RESTART is the command that gets the worker's name, and returns when the old process has ended.
set -eu
app=$1
shift

all_have_joined() {
    streamworker wait "$app" --joined "$#" --timeout "2 minutes"
}

is_ready() {
    streamworker health readyz --health-port "${1#*=}" >/dev/null 2>&1
}

all_have_joined "$@"
for worker in "$@"; do
    ${RESTART:-systemctl restart} "${worker%=*}"
    tries=60
    until is_ready "$worker"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { echo "$worker does not get ready." >&2; exit 1; }
        sleep 1
    done
    all_have_joined "$@"
done
