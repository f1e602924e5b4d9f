#!/usr/bin/env bash
# Checks tools/scaling in a smallest form: table, JSON and picture; that its network namespaces and
# ranks are gone afterwards and after Ctrl-C; real hosts, with a stand-in for SSH; wrong options.
# Where namespaces cannot be made it says so, and runs on loopback.
# usage: tests/scaling.sh
set -um # m: background jobs take SIGINT
cd "$(dirname "$0")/.." || exit
. tests/shell_support
set_up
need python3:python3 ip:iproute2 pgrep:procps shellcheck:shellcheck
shellcheck -x -S warning tests/scaling.sh tools/hosts || fail "shellcheck finds mistakes"

rate=100mbit
if ! CONVOY_HOSTS=try$$ tools/hosts up 1 $rate 2>/dev/null; then
    echo "scaling: network namespaces cannot be made here: on loopback, without a rate"
    rate=none
fi
CONVOY_HOSTS=try$$ tools/hosts down 2>/dev/null
ln -s "$PWD/trainer" "$work/trainer" # a name to find its ranks by
common=(--trainer "$work/trainer" --python none --models tiny --batch 16)
nothing_left() { ! pgrep -f -- "^$work/trainer" >/dev/null && [ -z "$(ip netns list | grep "^scaling$1-")" ]; }

tools/scaling "${common[@]}" --rates $rate --workers 2 --compute 0.4 --json "$work/json" --svg "$work/svg" \
    >"$work/table" 2>"$work/log" &
job=$!
wait $job || fail "the smallest run ended with $?" "$work/log"
nothing_left $job || fail "namespaces or ranks are left behind"
python3 - "$work" "$rate" <<'PY' || fail "table, JSON or picture are not as expected" "$work/table"
import json, re, sys, xml.etree.ElementTree as xml
work, rate = sys.argv[1:]
rows = {(r["line"], r["workers"]): r for r in json.load(open(f"{work}/json"))}
assert sorted(rows) == [("bf16", 1), ("bf16", 2), ("fp32", 1), ("fp32", 2)], rows
for (line, workers), r in rows.items():
    assert abs(r["efficiency"] * workers - r["speed_up"]) < 1e-9, r
    assert r["compute"] == 0.4 / workers and r["seconds"] >= r["compute"], r
    # Two workers sleep half as long each, and have little to send; a loaded machine adds to either.
    assert (r["speed_up"] == 1 if workers == 1 else 0.5 < r["speed_up"] < 4), r
    assert (r["forecast"] is None if workers == 1 else 1 < r["forecast"] <= 2.001), r
assert 0.4 < rows["bf16", 2]["bytes"] / rows["fp32", 2]["bytes"] < 0.6, rows
text = open(f"{work}/table").read()
assert "Compute is slept" in text, text
cell = r"[\d.]+ \(\d+ %; [\d.]+\)"
assert len(re.findall(rf"^\| tiny, {rate}, (?:fp32|bf16) \| {cell} \|$", text, re.M)) == 2, text
assert len(re.findall(r"each worker up to 2 adds.*What bounds it is \w+", text)) == 2, text
svg = xml.parse(f"{work}/svg").getroot()
lines = svg.findall("{http://www.w3.org/2000/svg}polyline")
assert len(lines) == 1 + 2 * 2, len(lines)  # ideal; measured and forecast of each
PY

# Everything is computed by hosts, also by the one worker that the others are compared with.
cat >"$work/ssh" <<'SH'
#!/bin/bash
exec bash -c "$5" # -o OPTION -- HOST COMMAND
SH
chmod +x "$work/ssh"
LAUNCH_SSH=$work/ssh CONVOY_COORD=127.0.0.1:$((32000 + $$ % 1000)) CONVOY_THREADS=1 tools/scaling "${common[@]}" \
    --hosts a,b --wire fp32 --steps 5 >"$work/table" 2>"$work/log" || fail "--hosts ended with $?" "$work/log"
grep -qE '^\| tiny, hosts, fp32 \| [0-9.]+ \([0-9]+ %; [0-9.]+\) \|$' "$work/table" ||
    fail "no row of --hosts" "$work/table"
! grep -q slept "$work/table" || fail "the compute of real hosts is said to be slept" "$work/table"

for signal in INT TERM; do
    tools/scaling "${common[@]}" --rates $rate --workers 2 --compute 100 >/dev/null 2>"$work/log" &
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

refused() { # pattern options…: one line that matches
    local pattern=$1
    shift
    tools/scaling --python none "$@" >/dev/null 2>"$work/log" &
    job=$!
    ! wait $job || fail "$* is accepted"
    grep -qE "^scaling: .*$pattern" "$work/log" && [ "$(wc -l <"$work/log")" -eq 1 ] ||
        fail "$*: not one sentence with '$pattern'" "$work/log"
    nothing_left $job || fail "$* leaves namespaces behind"
    job=""
}
refused "there are fp32 and bf16" --wire fp16
refused "as many numbers as there are --models" --compute 1
refused "does not go with --hosts" --models tiny --compute 1 --hosts a,b
refused "workers: invalid number value: '0'" --workers 0
refused "no program nowhere: run make" --trainer nowhere
refused "rates are like" --models tiny --compute 1 --rates fast
echo "scaling: ok, ${SECONDS} s"
