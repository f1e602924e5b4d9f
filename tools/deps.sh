#!/bin/sh
# Installs what is missing to build and test Convoy, and packages named as arguments, by apt (with
# sudo where needed). Elsewhere prints what is needed. Quick when all is there.
set -eu

packages="g++ make libasio-dev libopencv-core-dev libopencv-imgproc-dev libopencv-imgcodecs-dev
libjpeg-dev libtiff-dev libwebp-dev libcli11-dev libfmt-dev nlohmann-json3-dev libssl-dev doctest-dev libboost-context-dev
libarchive-dev libcurl4-openssl-dev zlib1g-dev"
# Curves of --page: the trainer is built without them if there is no such package.
optional="libjs-dygraphs"

if ! command -v apt-get >/dev/null 2>&1; then
    echo "deps: this is no Debian or Ubuntu; what is needed, by Debian's names:"
    echo "$packages $*"
    exit 0
fi

# Those of its arguments that are not installed.
lacking() {
    for package in "$@"; do
        state=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
        case $state in "install ok installed"*) ;; *) printf ' %s' "$package" ;; esac
    done
}
# shellcheck disable=SC2086  # lists of words on purpose, here and below
missing=$(lacking $packages "$@")
# shellcheck disable=SC2086
[ -n "$missing$(lacking $optional)" ] || exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        [ -n "$missing" ] || exit 0
        echo "deps: not root and no sudo; install with: apt-get install$missing" >&2
        exit 1
    }
    as_root="sudo"
fi
$as_root apt-get update -qq
for package in $(lacking $optional); do
    ! apt-cache show "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "deps: installing$missing"
# shellcheck disable=SC2086  # a list of words on purpose
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
