#!/bin/sh
# Installs what is missing to build and test Convoy, from the distribution's packages (apt, with
# sudo where needed), and packages named as arguments. Elsewhere prints what is needed. Quick when all
# is there.
set -eu

packages="g++ make libasio-dev libopencv-core-dev libopencv-imgproc-dev libopencv-imgcodecs-dev
libjpeg-dev libcli11-dev libfmt-dev nlohmann-json3-dev libssl-dev doctest-dev libboost-context-dev
libarchive-dev libcurl4-openssl-dev zlib1g-dev"

if ! command -v apt-get >/dev/null 2>&1; then
    echo "deps: this is no Debian or Ubuntu; what is needed, by Debian's names:"
    echo "$packages"
    exit 0
fi

missing=""
for package in $packages "$@"; do
    state=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
    case $state in "install ok installed"*) ;; *) missing="$missing $package" ;; esac
done
[ -n "$missing" ] || exit 0

echo "deps: installing$missing"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        echo "deps: not root and no sudo; install with: apt-get install$missing" >&2
        exit 1
    }
    as_root="sudo"
fi
$as_root apt-get update -qq
# shellcheck disable=SC2086  # a list of words on purpose
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
