#!/bin/bash
# Builds and tests this commit on other Debian releases, each in a chroot made by debootstrap under
# build/distros. Needs root. CUDA=0 there: the chroots have no nvcc.
#   tests/distros.sh [SUITE …]                     default: bookworm and trixie
#   CXX=clang++ PACKAGES=clang tests/distros.sh    with another compiler
set -eu
cd "$(dirname "$0")/.."
mkdir -p build/distros
command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap; }
[ $# -gt 0 ] || set -- bookworm trixie

for suite; do
    root=build/distros/$suite
    echo "=== $suite"
    [ -e "$root/etc/debian_version" ] || debootstrap --variant=minbase "$suite" "$root" >/dev/null
    rm -rf "$root/convoy" && git clone -q . "$root/convoy"
    # The mounts are gone when the command is, whatever becomes of it.
    unshare --mount --propagation private bash -euc '
        mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev"
        cp /etc/resolv.conf "$0/etc/resolv.conf"
        chroot "$0" bash -euc "export DEBIAN_FRONTEND=noninteractive
            apt-get update -qq && apt-get install -y -qq make git '"${PACKAGES:-}"' >/dev/null
            cd /convoy && make -s deps >/dev/null
            make -s -j$(nproc) CXX='"${CXX:-g++}"' CUDA=0 test"' "$root"
done
