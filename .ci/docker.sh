#!/usr/bin/env bash
# A Docker engine with the sandbox's image, from Debian's packages: for CI, and for any Debian machine without one.
#
# Installs what is missing, starts the daemon where none answers (as root; no systemd needed), builds a base without a
# registry and the image on top. Does nothing that is done already.
#   GRISTMILL           the command to build with (.venv/bin/gristmill)
#   DOCKERD_LOG         where the daemon's output goes (/var/log/gristmill-dockerd.log)
#   GRISTMILL_BASE_CACHE  folder that keeps the downloaded base
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

gristmill=${GRISTMILL:-.venv/bin/gristmill}
log=${DOCKERD_LOG:-/var/log/gristmill-dockerd.log}
base="gristmill-sandbox-base:bookworm"

say() { echo "docker.sh: $*" >&2; }
answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

install_missing() {
  local missing=()
  # /usr/local/bin/docker may be a client without an engine.
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v docker >/dev/null || missing+=(docker.io)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  # gVisor, for the tests that run on it.
  command -v runsc >/dev/null || missing+=(runsc)
  if [ ${#missing[@]} -gt 0 ]; then
    say "installing ${missing[*]}"
    apt-get update -qq
    # The package's own start script has no business here: it fails where there is no init.
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d.gristmill
    chmod +x /usr/sbin/policy-rc.d.gristmill
    if [ ! -e /usr/sbin/policy-rc.d ]; then
      mv /usr/sbin/policy-rc.d.gristmill /usr/sbin/policy-rc.d
      trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    else
      rm -f /usr/sbin/policy-rc.d.gristmill
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" iptables ca-certificates
  fi
}

mount_cgroups() {
  # A bare VM may have none mounted.
  if mountpoint -q /sys/fs/cgroup; then return; fi
  if grep -q cgroup2 /proc/filesystems && mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null; then return; fi
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
  local controller
  awk '!/^#/ && $4 == 1 { print $1 }' /proc/cgroups | while read -r controller; do
    mkdir -p "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" || rmdir "/sys/fs/cgroup/$controller"
  done
}

# Arguments: more options of dockerd.
start_daemon() {
  # One that was killed left its process id, which the next would take for a running one.
  if ! pidof dockerd >/dev/null; then rm -f /var/run/docker.pid /var/run/docker/containerd/containerd.pid; fi
  setsid nohup dockerd "$@" >>"$log" 2>&1 </dev/null &
  local daemon=$! tries
  for tries in $(seq 120); do
    if answers; then say "the daemon answers"; return 0; fi
    kill -0 "$daemon" 2>/dev/null || return 1
    sleep 0.5
  done
  say "the daemon does not answer after $((tries / 2)) s"
  kill "$daemon" 2>/dev/null || true
  return 1
}

if [ "$(id -u)" = 0 ]; then install_missing; fi
if ! answers; then
  [ -z "${DOCKER_HOST:-}" ] || { say "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST"; exit 1; }
  [ "$(id -u)" = 0 ] || { say "no Docker engine answers, and only root can start one"; exit 1; }
  mount_cgroups
  # Sandboxes need no network: where the kernel has no bridges or firewall, a daemon without them will do.
  plain=(--bridge=none --iptables=false --ip6tables=false)
  if ! start_daemon --storage-driver=overlay2 && ! start_daemon --storage-driver=overlay2 "${plain[@]}" &&
    ! start_daemon --storage-driver=vfs "${plain[@]}"; then
    tail -n 40 "$log" >&2
    say "the daemon does not start; its log is above"
    exit 1
  fi
fi

compose/sandbox/base.sh "$base"
"$gristmill" sandbox build --base "$base"
