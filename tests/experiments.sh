#!/usr/bin/env bash
# Checks tests/lab/experiments in a smallest form: tables and bytes; that its network namespaces
# and ranks are gone afterwards and after Ctrl-C; wrong options. Where namespaces cannot be made it
# says so and checks the options alone.
# usage: tests/experiments.sh
set -um # m: background jobs take SIGINT
cd "$(dirname "$0")/.." || exit
. tests/shell_support
set_up
need python3:python3 ip:iproute2 pgrep:procps shellcheck:shellcheck
shellcheck -x -S warning tests/experiments.sh tests/lab/hosts || fail "shellcheck finds mistakes"

refused() { # pattern options…: one line that matches
    local pattern=$1
    shift
    ! tests/lab/experiments "$@" >/dev/null 2>"$work/log" || fail "$* is accepted"
    grep -qE "^experiments: .*$pattern" "$work/log" && [ "$(wc -l <"$work/log")" -eq 1 ] ||
        fail "$*: not one sentence with '$pattern'" "$work/log"
}
refused "rates are like" servers --rate fast
refused "takes 2 to 16" servers --workers 1
refused "no program nowhere: run make" servers --trainer nowhere
refused "invalid choice: 'nothing'" nothing
refused "as many numbers as there are --models" scaling --compute 1

if ! CONVOY_HOSTS=try$$ tests/lab/hosts up 1 100mbit 2>/dev/null; then
    echo "experiments: ok, options alone: network namespaces cannot be made here" && exit
fi
CONVOY_HOSTS=try$$ tests/lab/hosts down
ln -s "$PWD/trainer" "$work/trainer" # a name to find its ranks by
nothing_left() { ! pgrep -f -- "^$work/trainer" >/dev/null && [ -z "$(ip netns list | grep "^ways$1-")" ]; }

run() { # table options…
    tests/lab/experiments "${@:2}" --trainer "$work/trainer" --json "$work/$1.json" >"$work/$1" 2>"$work/log" &
    job=$!
    wait $job || fail "$1 ended with $?" "$work/log"
    nothing_left $job || fail "$1 leaves namespaces or ranks behind"
    job=""
}
run servers servers --workers 2 --steps 3
run scaling scaling --workers 2 --models tiny --batch 16 --steps 2 --compute 0.4
python3 - "$work" <<'PY' || fail "tables or figures are not as expected" "$work/servers"
import json, re, sys
work = sys.argv[1]
found = re.findall(r"^\| 2 \| (ring|one server|a server a rank) \| [\d.]+ \| ([\d.]+) \| (\d+) \|$",
                   open(f"{work}/servers").read(), re.M)
assert [way for way, _, _ in found] == ["ring", "one server", "a server a rank"], found
# 23.3 MB of weights: a ring of two sends them once, and so does a server; 1448 of 1514 bytes are not headers.
assert [bound for _, bound, _ in found] == ["0.19", "0.39", "0.19"], found
assert all(22 <= int(sent) <= 45 for _, _, sent in found), found
assert len(json.load(open(f"{work}/servers.json"))) == 3
rows = json.load(open(f"{work}/scaling.json"))
assert [row["line"] for row in rows] == ["Convoy fp32", "Convoy bf16"], rows
# Two workers sleep half as long each, and have little to send; a loaded machine adds to either.
assert all(0.5 < row["speed_up"][0] < 4 and row["compute"] == 0.4 for row in rows), rows
PY

for signal in INT TERM; do
    tests/lab/experiments servers --workers 2 --steps 100000 --trainer "$work/trainer" >/dev/null 2>"$work/log" &
    job=$!
    within 20 pgrep -f -- "^$work/trainer" >/dev/null || fail "no rank starts" "$work/log"
    kill -s $signal -- -$job
    wait $job
    status=$?
    [ $status -eq "$([ $signal = INT ] && echo 130 || echo 143)" ] ||
        fail "SIG$signal gives status $status" "$work/log"
    within 10 nothing_left $job || fail "SIG$signal leaves namespaces or ranks behind"
done
job=""
echo "experiments: ok, ${SECONDS} s"
