#!/bin/bash
# tools/deploy/cloud, against mocks of aws, ssh, scp and curl that keep a list of what exists:
#   - the calls of --dry-run are those of tests/cloud_dry_run.txt (made by `tests/cloud.sh golden`)
#     and have valid parameters, as the AWS CLI itself sees them, where it is installed
#   - each call fails once, before or after it had its effect; signals during calls; lost machines;
#     a killed script and --clean: nothing is left
#   - three ranks of ./trainer, on hosts made by tools/hosts, where root runs this after `make`
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tmp=$(mktemp -d)
real_aws=$(command -v aws || true)
export CONVOY_HOSTS=cloud$$
hosts_up=''
finish() {
    local pid
    for pid in "$tmp"/*/home/*/pid; do
        [ ! -e "$pid" ] || pkill -KILL -P "$(cat "$pid")" || true
    done
    [ -z "$hosts_up" ] || tools/hosts down
    rm -rf "$tmp"
}
trap finish EXIT
bad() { echo "FAILED: $*" | tee -a "$tmp/failed" >&2; }

# --- The mocks. $CLOUD is the state of one case: what exists, and a folder for each machine.

mkdir "$tmp/bin" "$tmp/remote"
cat >"$tmp/bin/aws" <<'MOCK'
#!/bin/bash
program=${0##*/} all="${0##*/} ${*//$'\n'/ }"
exec 9<"$CLOUD" && flock 9
echo "$all" >>"$CLOUD/calls"
mapfile -t made <"$CLOUD/calls"
number=${#made[@]}
exec 9<&-
die() { echo "$2" >&2; exit "$1"; }
injected() {
    [ "$program" != aws ] || die 254 "An error occurred (InternalError) when calling number $number"
    [ "$program" != ssh ] || die 255 "ssh: connection reset"
    die 1 "$program: injected"
}
[ "$number" != "${FAIL_BEFORE:-}" ] || injected
[ -z "${FAIL_ALL:-}" ] || [[ $all != *"$FAIL_ALL"* ]] || injected
interrupt() {
    if [ "$number" = "${SIGNAL_AT:-}" ]; then
        case $SIGNAL in
        INT) kill -INT 0 ;; # as a terminal does: to the whole process group
        *) kill "-$SIGNAL" "$(cat "$CLOUD/script")" ;;
        esac
        /bin/sleep 0.05
    fi
}
[[ $all = *run-instances* ]] || interrupt
after() { # --OPTION: the word after it
    local previous='' word
    for word in "${words[@]}"; do [ "$previous" != "$1" ] || echo "$word"; previous=$word; done
}
lose() { # instance, reason: its processes end
    local home="$CLOUD/home/${1#i-}" pid
    echo "terminated	$2" >"$CLOUD/instances/$1"
    pid=$(cat "$home/pid" 2>/dev/null) || return 0
    pkill -KILL -P "$pid" || true
    kill -KILL "$pid" 2>/dev/null || true
}
on_machine() { # 'machineN …': the folder of N, if it runs and the address is its own
    local i=${1#machine} host
    host=$(sed -n "/^Host machine$i\$/{n;s/HostName //p}" "$config")
    [ "$host" = "203.0.113.1$i" ] || die 255 "ssh: Could not resolve hostname $1"
    grep -q '^running' "$CLOUD/instances/i-$i" || die 255 "ssh: connect to host $host: timed out"
    cd "$CLOUD/home/$i" || exit
}
words=("$@")
case $all in
'aws '*' sts get-caller-identity '*) echo arn:aws:iam::123456789012:user/test ;;
'aws '*' ssm get-parameter '*) echo ami-0123456789abcdef0 ;;
'aws '*' describe-images '*) echo /dev/xvda ;;
'aws '*' describe-security-groups '*) cat "$CLOUD"/group 2>/dev/null || echo -n ;;
'aws '*' create-security-group '*)
    [ ! -e "$CLOUD/group" ] || die 254 "(InvalidGroup.Duplicate)"
    echo sg-0123 | tee "$CLOUD/group" ;;
'aws '*' authorize-security-group-ingress '*)
    [[ "$(after --group-id)" = "$(cat "$CLOUD/group")" ]] || die 254 "(InvalidGroup.NotFound)" ;;
'aws '*' import-key-pair '*)
    cat "$(after --public-key-material | sed 's,fileb://,,')" >"$CLOUD/key" && echo key-0123 ;;
'aws '*' run-instances '*)
    [ -s "$CLOUD/key" ] && [ -e "$CLOUD/group" ] || die 254 "(InvalidKeyPair.NotFound)"
    # The machines come also when the program that asked for them was interrupted.
    count=$(after --count)
    for ((i = 0; i < count; ++i)); do
        mkdir -p "$CLOUD/instances" "$CLOUD/home/$i"
        [ -z "${SIGNAL:-}" ] || /bin/sleep 0.2
        echo pending >"$CLOUD/instances/i-$i"
    done &
    /bin/sleep 0.05 && interrupt && wait
    for ((i = 0; i < count; ++i)); do printf 'i-%d\t' $i; done ;;
'aws '*' wait instance-running '*)
    for i in "$CLOUD"/instances/*; do echo running >"$i"; done ;;
'aws '*' wait instance-status-ok '*) ;;
'aws '*' wait instance-terminated '*)
    sed -i 's/^shutting-down/terminated/' "$CLOUD"/instances/* ;;
'aws '*'PublicIpAddress'*)
    for i in "$CLOUD"/instances/*; do
        i=${i##*-} && printf '203.0.113.1%d\t10.77.0.%d\n' "$i" $((i + 1))
    done ;;
'aws '*'StateReason'*)
    for i in "$CLOUD"/instances/*; do printf '%s\t%s\n' "${i##*/}" "$(cat "$i")"; done ;;
'aws '*' describe-instances '*)
    # A fresh machine may be missing from the list for a while.
    if [ -n "${LATE_LIST:-}" ] && [ ! -e "$CLOUD/listed" ]; then touch "$CLOUD/listed" && exit; fi
    grep -Lr '^terminated' "$CLOUD/instances" 2>/dev/null | sed 's,.*/,,' | paste -s || true ;;
'aws '*' terminate-instances '*)
    for ((i = 7; i < $#; ++i)); do
        [[ ${words[i]} != i-* ]] || { lose "${words[i]}" Client.UserInitiatedShutdown
            sed -i s/^terminated/shutting-down/ "$CLOUD/instances/${words[i]}"; }
    done ;;
'aws '*' delete-key-pair '*) rm -f "$CLOUD/key" ;;
'aws '*' delete-security-group '*)
    [ -z "$(grep -Lr '^terminated' "$CLOUD/instances" 2>/dev/null)" ] ||
        die 254 "(DependencyViolation) when calling DeleteSecurityGroup: has a dependent object"
    rm "$CLOUD/group" ;;
'aws '*' s3 presign '*) echo "https://b.s3.amazonaws.com/x?X-Amz-Signature=5ec4e7&X=1" ;;
'curl '*) echo 203.0.113.7 ;;
'sleep '*) ;;
'tar '*) /bin/tar "$@" || exit ;;
'ssh -F '*)
    config=$2 && on_machine "$3"
    if [[ $4 = tail* ]] && [ -n "${LOSE:-}" ] && [ ! -e "$CLOUD/lost" ]; then
        echo "$LOSE" >"$CLOUD/lost"
        lose "i-$LOSE" 'Server.SpotInstanceTermination: Spot instance termination'
        [ "$LOSE" != 0 ] || die 255 "Connection to 203.0.113.10 closed by remote host."
    fi
    if [ -n "${HOSTS:-}" ]; then "$HOSTS" run $((${3#machine} + 1)) bash -c "$4" || exit
    else PATH=$REMOTE:/usr/bin:/bin bash -c "$4" || exit; fi ;;
'scp -q -F '*)
    config=$3 && set -- "${@:4}"
    if [[ $1 = machine*:* ]]; then
        target=$(realpath "$2") && on_machine "${1%%:*}" && cp "${1#*:}" "$target" || exit
    else
        files=() && while [ $# -gt 1 ]; do files+=("$(realpath "$1")") && shift; done
        on_machine "${1%:}" && cp "${files[@]}" . || exit
    fi ;;
*) die 2 "the mock does not know: $all" ;;
esac
[ "$number" != "${FAIL_AFTER:-}" ] || injected
MOCK
for program in ssh scp curl sleep tar; do ln -s aws "$tmp/bin/$program"; done
# On the machines: S3, and a tail that does not wait a second.
cat >"$tmp/remote/curl" <<'MOCK'
#!/bin/sh
case $* in *X-Amz-Signature=5ec4e7*) cat "$CLOUD/bucket.tar" ;; *) exit 22 ;; esac
MOCK
cat >"$tmp/remote/tail" <<'MOCK'
#!/bin/bash
for word; do case $word in --pid=*) pid=${word#*=} ;; esac; done
for ((i = 0; i < 500; ++i)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.02; done
[ "$word" = /dev/null ] || cat "$word"
MOCK
# The trainer of most cases: ends at once, or with TRAIN=long at a signal or when a rank is lost.
cat >"$tmp/trainer-static" <<'MOCK'
#!/bin/bash
echo "options: $*"
while [ $# -gt 0 ]; do
    case $1 in --rank) rank=$2 ;; --out | --resume) out=$2 ;; --data) ls "$2" ;; esac
    shift
done
save() { mkdir -p "$out" && echo "$1" >>"$out/model" && ln -sf model "$out/latest"; }
trap 'save stopped; exit 143' TERM
for ((i = 0; i < 500; ++i)); do
    if [ -e "$CLOUD/lost" ]; then
        echo "error: rank $(cat "$CLOUD/lost") was lost" && save "of rank $rank" && exit 1
    fi
    if [ "$rank" != 0 ] && [ -e ../0/status ]; then exit; fi
    if [ "$rank" = 0 ] && [ -z "${TRAIN:-}" ]; then save trained; exit; fi
    sleep 0.02
done
MOCK
chmod +x "$tmp"/bin/aws "$tmp"/remote/* "$tmp/trainer-static"
ssh-keygen -q -t ed25519 -N '' -f "$tmp/key" 2>/dev/null || echo "ssh-ed25519 test" >"$tmp/key.pub"
mkdir -p "$tmp/flowers/daisy" && echo image >"$tmp/flowers/daisy/1.jpg"

# cloud CASE OPTION…: runs the script for a case of that name; its output is in CASE/out.
export REMOTE=$tmp/remote TMPDIR=$tmp
cloud() {
    local folder=$tmp/$1 && shift
    mkdir -p "$folder"
    (cd "$folder" && CLOUD=$folder PATH=$tmp/bin:$PATH exec bash -c 'echo $$ >script; exec "$@"' - \
        "$root/tools/deploy/cloud" --region eu-central-1 "$@" >>out 2>&1)
}
train=(--name test --machines 2 --binary "$tmp/trainer-static" --key "$tmp/key")
calls() { wc -l <"$tmp/$1/calls"; }
nothing_left() { # CASE
    local pid i
    [ ! -e "$tmp/$1/group" ] || bad "$1: the security group is left"
    [ ! -e "$tmp/$1/key" ] || bad "$1: the key is left"
    ! grep -Lrs '^terminated' "$tmp/$1/instances" | grep -q . || bad "$1: machines are left"
    for pid in "$tmp/$1"/home/*/pid; do
        [ -e "$pid" ] || continue
        for ((i = 0; i < 100; ++i)); do # a killed process needs a moment to be gone
            [[ ! $(ps -o stat= -p "$(cat "$pid")") =~ ^Z?$ ]] || continue 2
            sleep 0.05
        done
        bad "$1: a rank is left"
    done
    ! compgen -G "$tmp/$1/tmp.*" >/dev/null || bad "$1: a folder for answers is left"
}
expect() { # CASE WANTED-STATUS STATUS [TEXT]
    [ "$3" = "$2" ] || bad "$1: ended with $3, not $2: $(tail -3 "$tmp/$1/out")"
    [ $# -lt 4 ] || grep -qF -- "$4" "$tmp/$1/out" || bad "$1: its output lacks '$4'"
}
# As many cases at a time as keep two cores busy; each with a process group of its own.
beside() {
    while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n || true; done
    "$@" &
}

# --- The dry run: no call is made, and the calls are the known ones.

dry() {
    cloud dry --dry-run --name demo --machines 2 --binary ./trainer-static --key key "$@"
}
dry --spot --data flowers --price-per-hour 0.714 -- --model resnet18 --epochs 30 || bad "dry run"
echo "=== --data in S3, --resume" >>"$tmp/dry/out"
dry --from 203.0.113.0/24 --image ami-0123456789abcdef0 --data s3://bucket/flowers.tar \
    --resume runs/old || bad "dry run"
echo "=== --clean" >>"$tmp/dry/out"
cloud dry --dry-run --clean demo || bad "dry run of --clean"
[ "${1:-}" != golden ] || { cp "$tmp/dry/out" tests/cloud_dry_run.txt && exit; }
diff tests/cloud_dry_run.txt "$tmp/dry/out" || bad "the dry run is not tests/cloud_dry_run.txt"
[ ! -e "$tmp/dry/calls" ] || bad "the dry run made a call"

# The CLI checks parameters before it connects: to a port where nobody listens, with keys of nobody.
validate() {
    local line said count=0
    cp "$tmp/key.pub" "$tmp/dry/key.pub"
    while read -r line; do
        said=$(cd "$tmp/dry" && export AWS_CONFIG_FILE=/dev/null AWS_ACCESS_KEY_ID=none \
            AWS_SECRET_ACCESS_KEY=none AWS_MAX_ATTEMPTS=1 &&
            eval "$real_aws --endpoint-url http://127.0.0.1:9 ${line#+ aws }" 2>&1) || true
        case $said in
        *'Could not connect to the endpoint URL: "http://127.0.0.1:9/'* | http*Signature*)
            count=$((count + 1)) ;;
        *) bad "the AWS CLI refuses: $line: $said" ;;
        esac
    done < <(awk '/^\+ aws/ { # the same options once
        options = $7
        for (i = 8; i <= NF; ++i) if ($i ~ /^--/) options = options $i
        if (!seen[options]++) print }' tests/cloud_dry_run.txt)
    echo "$count calls have valid parameters: $("$real_aws" --version 2>&1)"
}
if [ -n "$real_aws" ] && "$real_aws" --version >/dev/null 2>&1; then
    validate &
else
    echo "parameters of the calls: not checked, there is no AWS CLI (package awscli)"
fi

# --- The trainer itself, on three hosts with addresses of their own.

real() {
    HOSTS=$root/tools/hosts cloud real "${train[@]}" --machines 3 --binary "$root/trainer" -- \
        --generated 240 --epochs 1 --batch 30 --threads 1 || bad "the trainer on three hosts"
    expect real 0 0 "[rank 0] done: "
    [ -s "$tmp/real/runs/test/best/model.safetensors" ] || bad "the trainer's model did not arrive"
    grep -q '10.77.0.3:29401' "$tmp/real/out" || bad "rank 2 is not on the open port"
    nothing_left real
}
if [ "$(id -u)" = 0 ] && [ -x trainer ] && command -v ip >/dev/null; then
    hosts_up=yes
    tools/hosts up 3
    real &
else
    echo "the trainer on three hosts: not tried; needs root, ./trainer (make) and iproute2"
fi

# --- Whole runs.

cloud folder "${train[@]}" --data "$tmp/flowers" --price-per-hour 0.5 -- --epochs 1 || bad "folder"
expect folder 0 0 "nothing of run test is left"
[ "$(cat "$tmp/folder/runs/test/latest")" = trained ] || bad "the results did not arrive"
[ -L "$tmp/folder/runs/test/latest" ] || bad "a link in the results became a copy"
grep -q -- '--rank 1 .*--price-per-hour 0.5 --epochs 1' "$tmp/folder/runs/test.rank1.txt" ||
    bad "the options did not arrive"
grep -q daisy "$tmp/folder/runs/test.rank1.txt" || bad "the data did not arrive on machine 1"
nothing_left folder

mkdir -p "$tmp/s3/runs/old" && echo before >"$tmp/s3/runs/old/model"
tar -cf "$tmp/s3/bucket.tar" -C "$tmp/flowers" .
cloud s3 "${train[@]}" --data s3://bucket/flowers.tar --resume runs/old || bad "s3"
grep -q daisy "$tmp/s3/runs/test.rank1.txt" || bad "the data did not come from S3"
[ "$(paste -sd, "$tmp/s3/runs/old/model")" = before,trained ] || bad "the run was not continued"
! grep -q 5ec4e7 "$tmp/s3/out" || bad "the signed link was printed"
nothing_left s3

# --- Each call fails once. A call of the deletion is made again, and so is a broken connection.


fail_once() { # before|after NUMBER
    local case=fail-$1-$2 when=${1^^} status=0 call
    export TMPDIR=$tmp/$case && mkdir "$TMPDIR"
    export "FAIL_$when=$2"
    cloud "$case" "${train[@]}" --data "$tmp/flowers" || status=$?
    nothing_left "$case"
    call=$(sed -n "$2p" "$tmp/$case/calls")
    case $call in aws*) call=$(cut -d' ' -f6,7 <<<"$call") ;; *) call="${call%% *} " ;; esac
    grep -F 'error: status' "$tmp/$case/out" | grep -qF -- "$call" ||
        bad "$case: '$call' is not named"
    if [ "$2" -ge "$deletion" ] || grep -q "^error: status .*tail -n" "$tmp/$case/out"; then
        expect "$case" 0 $status "nothing of run test is left"
        [ -e "$tmp/$case/runs/test/model" ] || bad "$case: no results"
    else
        [ $status -ne 0 ] || bad "$case: the script ended with 0"
    fi
}
n=$(calls folder)
deletion=$(grep -n 'Name=tag:convoy' "$tmp/folder/calls" | head -1 | cut -d: -f1)
for ((k = 1; k <= n; ++k)); do
    beside fail_once before "$k"
    case $(sed -n "${k}p" "$tmp/folder/calls") in
    *create-* | *authorize-* | *import-* | *run-* | *terminate-* | *delete-*)
        beside fail_once after "$k" ;;
    esac
done

# --- A signal at every second call, and at the one that follows the log.

signal() { # NAME WANTED-STATUS NUMBER
    local case=signal-$1-$3 status=0 wanted=$2
    export TMPDIR=$tmp/$case SIGNAL=$1 SIGNAL_AT=$3 TRAIN=long && mkdir "$TMPDIR"
    set -m # a process group of its own, in which SIGINT is not ignored
    cloud "$case" "${train[@]}" &
    set +m
    wait $! || status=$?
    sleep 0.5 # machines that still come
    nothing_left "$case"
    expect "$case" "$wanted" $status
    if grep -q ' tail -n' "$tmp/$case/calls"; then
        grep -qx stopped "$tmp/$case/runs/test/model" || bad "$case: no checkpoint"
    fi
}
n=$(grep -n ' tail -n' "$tmp/folder/calls" | cut -d: -f1)
n=$((n - 5)) # without --data: one tar, two copies, two times unpacking
for ((k = 1; k < n; k += 2)); do
    beside signal INT 130 "$k"
    [ $((k % 8)) -ne 1 ] || beside signal TERM 143 "$k"
done
beside signal INT 130 "$n"
beside signal HUP 129 "$n"
ignored() { # during the deletion
    local case=signal-ignored-$1 status=0
    export TMPDIR=$tmp/$case SIGNAL=INT SIGNAL_AT=$1 && mkdir "$TMPDIR"
    set -m
    cloud "$case" "${train[@]}" &
    set +m
    wait $! || status=$?
    nothing_left "$case"
    expect "$case" 0 $status "nothing of run test is left"
}
for ((k = deletion - 5; k <= $(calls folder) - 5; k += 2)); do beside ignored "$k"; done
wait_for_all() { while [ -n "$(jobs -rp)" ]; do wait -n || true; done; }

# --- Machines that are lost, and lists that lag.

lost() { # MACHINE: rank 0 says so, or its machine is gone; a checkpoint of the rest is collected
    local case=lost-$1 status=0
    LOSE=$1 TRAIN=long cloud "$case" "${train[@]}" --spot || status=$?
    expect "$case" 1 $status "i-$1	terminated	Server.SpotInstanceTermination: Spot"
    expect "$case" 1 $status "what was saved: --resume runs/test"
    grep -qx "of rank $((1 - $1))" "$tmp/$case/runs/test/model" || bad "$case: no checkpoint"
    nothing_left "$case"
}
beside lost 0
beside lost 1
late() {
    local status=0
    LATE_LIST=1 FAIL_ALL='wait instance-running' cloud late "${train[@]}" || status=$?
    expect late 254 $status "DependencyViolation"
    nothing_left late
}
beside late

# --- What --clean is for: a killed script, an account that does not answer.

killed() {
    local status=0
    SIGNAL=KILL SIGNAL_AT=$n TRAIN=long cloud killed "${train[@]}" || status=$?
    expect killed 137 $status
    cloud killed "${train[@]}" && bad "killed: a second run of the same name began"
    expect killed 137 $status "tools/deploy/cloud --region eu-central-1 --clean test"
    [ -e "$tmp/killed/group" ] || bad "killed: a second run deleted the first"
    cloud killed --clean test || bad "killed: --clean failed"
    nothing_left killed
    cloud killed --clean test || bad "killed: --clean with nothing left failed"
}
beside killed
stuck() {
    local status=0
    FAIL_ALL=terminate-instances cloud stuck "${train[@]}" || status=$?
    expect stuck 1 $status "--region eu-central-1 --clean test"
    [ -e "$tmp/stuck/runs/test/model" ] || bad "stuck: no results"
    cloud stuck --clean test || bad "stuck: --clean failed"
    nothing_left stuck
}
beside stuck
wait_for_all

# --- Errors that need no call.

refused() { # TEXT OPTION…
    local text=$1 status=0 && shift
    cloud refused "$@" || status=$?
    expect refused 1 $status "$text"
}
refused "unknown option --mashines" --mashines 3
refused "--machines 0" "${train[@]}" --machines 0
refused "--name Test" "${train[@]}" --name Test
refused "there is no such folder" "${train[@]}" --data nowhere
refused "is no program" "${train[@]}" --binary nowhere
refused "no nokey.pub" "${train[@]}" --key nokey
[ ! -e "$tmp/refused/calls" ] || bad "a call was made before an error of the command line"

[ ! -e "$tmp/failed" ] || { echo "$(wc -l <"$tmp/failed") failures" >&2 && exit 1; }
echo "cloud: $(find "$tmp" -name calls | wc -l) runs, nothing was left of any"
