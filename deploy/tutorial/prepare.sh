#!/bin/sh
# What a tutorial needs that real parties have: each party's table, configuration and certificate, in its own folder.
# usage: prepare.sh PARTIES, a folder that has or gets one for each
set -eu
umask 077
if [ -e "$1/hospital/hospital.yaml" ]; then exit 0; fi # from the last time
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
vertizo init "$made" --parties
vertizo certs "$made/certs" --server hospital --member lab --member clinic
for party in clinic lab hospital; do # hospital.yaml last: it says that all is there
    mkdir -p "$1/$party/certs"
    cp -R "$made/certs/$party" "$1/$party/certs/"
    cp "$made/$party".*csv "$1/$party"
    cp "$made/$party.yaml" "$1/$party"
done
