#!/usr/bin/env bash
# A base image without a registry: Debian with its own Python, by debootstrap and `docker import`.
#
#   compose/sandbox/base.sh [TAG]        (default gristmill-sandbox-base:bookworm)
#   gristmill sandbox build --base TAG
#
# Needs root, debootstrap and a Docker engine. GRISTMILL_BASE_CACHE names the folder that keeps the downloaded system,
# DEBIAN_MIRROR the mirror. Does nothing where the image is there already; FORCE=1 makes it anew.
set -euo pipefail

tag=${1:-gristmill-sandbox-base:bookworm}
suite=bookworm
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
cache=${GRISTMILL_BASE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gristmill}
archive=$cache/sandbox-base-$suite-$(dpkg --print-architecture).tar

command -v docker >/dev/null || { echo "base.sh: no docker command" >&2; exit 1; }
if [ -z "${FORCE:-}" ] && docker image inspect "$tag" >/dev/null 2>&1; then
  echo "$tag is there"
  exit 0
fi

mkdir -p "$cache"
if [ -n "${FORCE:-}" ] || [ ! -s "$archive" ]; then
  [ "$(id -u)" = 0 ] || { echo "base.sh: debootstrap needs root" >&2; exit 1; }
  command -v debootstrap >/dev/null || { echo "base.sh: no debootstrap: apt-get install debootstrap" >&2; exit 1; }
  root=$(mktemp -d "$cache/root.XXXXXX")
  trap 'rm -rf --one-file-system "$root"' EXIT
  debootstrap --variant=minbase --include=python3 "$suite" "$root" "$mirror"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/* "$root"/var/log/*
  tar --numeric-owner --xattrs -C "$root" -cf "$archive.part" --exclude=./proc/* --exclude=./sys/* --exclude=./dev/* .
  mv "$archive.part" "$archive"
fi
docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
  --change 'ENV LANG=C.UTF-8' "$archive" "$tag"
