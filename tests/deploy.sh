#!/usr/bin/env bash
# Checks the launchers: tools/launch and the files of tools/deploy.
#   1. validators: shellcheck, docker-compose config, docker stack config, systemd-analyze verify
#   2. the words and variables of each file start ranks that train, as its engine would start them
#   3. tools/launch: local ranks and hosts over SSH (an sshd of its own, on loopback, with keys of its
#      own): output, exit status, signals, and that no process stays behind
#   4. Open MPI
#   5. a start as in Swarm, on network namespaces: ranks found by one name, one late, one that starts
#      again with another address before the job is complete
# usage: tests/deploy.sh
set -um # m: background jobs take SIGINT
cd "$(dirname "$0")/.." || exit
[ -x trainer ] || make -s trainer || exit
work=$(mktemp -d "${TMPDIR:-/tmp}/convoy-deploy-XXXXXX")
sshd_pid="" launcher="" netns=deploy$$
finish() {
    [ -z "$launcher" ] || kill -KILL "$launcher" # its ranks end with it
    [ -z "$sshd_pid" ] || kill "$sshd_pid"
    [ ! -d "/etc/netns/$netns-1" ] || { CONVOY_HOSTS=$netns tests/lab/hosts down && rm -rf "/etc/netns/$netns"-*; }
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM
. tests/shell_support
nobody_left() { within 10 eval "! pgrep -f -- '--out $1( |\$)' >/dev/null" || fail "processes of $1 are left behind"; }
small=(--generated 48 --epochs 1 --size 16 --batch 8)
long=(--generated 48 --epochs 100000 --size 16 --batch 8 --save-every 0)

need mpirun:openmpi-bin /usr/sbin/sshd:openssh-server ssh:openssh-client shellcheck:shellcheck \
    docker-compose:docker-compose systemd-analyze:systemd pgrep:procps ip:iproute2
python3 -c 'import yaml' 2>/dev/null || need "import yaml:python3-yaml"

echo "deploy: 1 validators"
shellcheck -x -S warning tools/launch tools/demo.sh tools/deploy/slurm.sbatch tests/deploy.sh || fail "shellcheck finds mistakes"
CONVOY_TOKEN=x docker-compose -f tools/deploy/compose.yaml config -q || fail "compose.yaml is not valid"
if docker stack config --help >/dev/null 2>&1; then # from Docker 25 on
    docker stack config -c tools/deploy/swarm.yaml >/dev/null || fail "swarm.yaml is not valid"
fi
sed "s#/usr/local/bin/trainer#$PWD/trainer#" tools/deploy/convoy@.service >"$work/convoy@.service"
systemd-analyze verify --man=no "$work/convoy@.service" || fail "convoy@.service is not valid"

echo "deploy: 2 what each file starts"
cat >"$work/start.py" <<'PY'
import os, re, subprocess, sys, yaml
work, port = sys.argv[1], 30100
token = subprocess.run(["./trainer", "token"], capture_output=True, text=True, check=True).stdout.strip()
def start(name, ranks, coord, world):
    """ranks: (words, environment) of each; as the engine starts them, but here and with a small job."""
    global port
    port += 100
    run = f"{work}/{name}"
    jobs = []
    for words, env in ranks:
        env = {key: str(value) for key, value in env.items()}
        secret = env.pop("CONVOY_TOKEN", None) or env.pop("CONVOY_TOKEN_FILE", None)
        assert secret, f"{name}: its ranks get no token"
        env["CONVOY_TOKEN"] = token
        for key in ("CONVOY_COORD", "PET_MASTER_ADDR"):
            if key in env:
                assert env[key].split(":")[0] == coord, f"{name}: {key} is {env[key]}, not {coord}"
                env[key] = env[key].replace(coord, "127.0.0.1").replace(":29400", f":{port}")
        words = " ".join(words).replace("/runs/job", run).replace(
            "--data /data --model resnet18 --epochs 30",
            "--generated 48 --epochs 1 --size 16 --batch 8 --threads 1").split()
        assert "--generated" in words, f"{name}: other words than expected: {words}"
        env.setdefault("PET_MASTER_PORT", str(port))
        jobs.append(subprocess.Popen(["./trainer"] + words, env=os.environ | env, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    texts = [job.communicate(timeout=30)[0] for job in jobs]
    for job, text in zip(jobs, texts):
        assert job.returncode == 0, f"{name}: {text}"
    assert any(f"{world} of {world} joined" in text for text in texts), f"{name}: {texts}"
    print(f"deploy:   {name}: {world} ranks")
def read(name):
    return list(yaml.safe_load_all(open(f"tools/deploy/{name}.yaml")))
compose = read("compose")[0]["services"]
def of(service):
    env = {k: re.sub(r"\$\{WORLD:-(\d+)\}", r"\1", str(v)) for k, v in service["environment"].items()}
    return (service["command"].split(), env)
start("compose", [of(compose["rank0"])] + [of(compose["rank"])] * compose["rank"]["scale"], "rank0", 4)
swarm = read("swarm")[0]["services"]["trainer"]
def slot(i):
    return {k: str(v).replace("{{.Task.Slot}}", str(i)) for k, v in swarm["environment"].items()}
replicas = swarm["deploy"]["replicas"]
start("swarm", [(swarm["command"].split(), slot(i + 1)) for i in range(replicas)], "tasks.trainer", replicas)
service, job = read("kubernetes")
assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
job = job["spec"]
assert job["parallelism"] == job["completions"]
spec = job["template"]["spec"]["containers"][0]
env = {e["name"]: e.get("value") or e["valueFrom"]["secretKeyRef"]["name"] for e in spec["env"]}
start("kubernetes", [(spec["args"], env | {"JOB_COMPLETION_INDEX": i}) for i in range(job["completions"])],
      "convoy-0.convoy", int(env["CONVOY_WORLD"]))
# SkyPilot's: only keys of its reference, and `run` started as it does, with a stand-in for the trainer.
sky = read("sky")[0]
assert set(sky) <= {"name", "workdir", "num_nodes", "resources", "file_mounts", "envs", "secrets", "setup", "run"}, sky
assert set(sky["resources"]) <= {"infra", "accelerators", "cpus", "memory", "use_spot", "disk_size", "autostop"}, sky
assert sky["resources"]["autostop"]["down"] and sky["file_mounts"]["~/trainer"] == "./trainer-static", sky
home = f"{work}/home"
os.mkdir(home)
with open(f"{home}/trainer", "w") as file:
    file.write(f'#!/bin/bash\nenv | grep ^CONVOY_ | LC_ALL=C sort\nprintf "%s\\n" "$*"\n')
os.chmod(f"{home}/trainer", 0o755)
said = subprocess.run(["bash", "-euc", sky["run"]], text=True, capture_output=True, check=True, env=os.environ | {
    **sky["envs"], "HOME": home, "TOKEN": token, "DATA": "s3://b/a.tar", "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": str(sky["num_nodes"]), "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n"}).stdout.splitlines()
assert said == ["CONVOY_COORD=10.0.0.1:29400", "CONVOY_RANK=1", f"CONVOY_TOKEN={token}", "CONVOY_WORLD=5",
                f"--data s3://b/a.tar {sky['envs']['OPTIONS']} --out {home}/runs/job --resume {home}/runs/job"], said
print("deploy:   sky: 5 ranks")
PY
python3 "$work/start.py" "$work" || fail "a file of tools/deploy does not start its ranks"

echo "deploy: 3 tools/launch"
! tools/launch -n 2 -- ./trainer --device simt "${small[@]}" --out "$work/simt" >"$work/said" 2>&1 ||
    fail "./trainer has the emulator"
grep -q 'make trainer-simt' "$work/said" || fail "ranks without the emulator do not say how to get it" "$work/said"
tools/launch -n 3 -- ./trainer "${small[@]}" --out "$work/local" >"$work/log" 2>&1 || fail "-n 3 ended with $?" "$work/log"
holds '^\[rank 2\] done: 5 steps' "$work/log" "launch -n 3"
! grep -v '^\[rank [0-2]\] ' "$work/log" || fail "lines without their rank" "$work/log"
# shellcheck disable=SC2016  # expanded by the ranks
tools/launch --fail-fast -n 3 -- bash -c '[ $CONVOY_RANK != 1 ] || exit 7; exec sleep 60' 2>/dev/null
status=$?
[ $status -eq 7 ] || fail "a rank that exits with 7 gives $status with --fail-fast"
# shellcheck disable=SC2016
tools/launch -n 3 -- bash -c '[ $CONVOY_RANK != 1 ] || kill -KILL $$; sleep 1; echo goes on' >"$work/log" 2>&1 ||
    fail "two ranks that outlive a third give $?" "$work/log"
[ "$(grep -c 'goes on' "$work/log")" -eq 2 ] || fail "a killed rank ends the others" "$work/log"
! tools/launch -n 2 -- false 2>/dev/null || fail "ranks that all fail give status 0"
[ "$(tools/launch -n 2 -- ./trainer --bach 3 2>&1 | grep -c 'did you mean --batch')" -ge 1 ] ||
    fail "the error of a rank is not shown"

# launch_and_stop NAME SIGNAL STATUS OPTIONS…: stops a training run after its first epochs.
launch_and_stop() {
    local name=$1 signal=$2 want=$3 out=$work/$1 pid status
    shift 3
    tools/launch "$@" -- "$PWD/trainer" "${long[@]}" --out "$out" >"$out.log" 2>&1 &
    pid=$! launcher=$!
    within 20 grep -qs 'epoch 2/' "$out.log" || fail "$name does not train" "$out.log"
    kill -s "$signal" $pid
    within 20 eval "! kill -0 $pid 2>/dev/null" || fail "$name goes on after SIG$signal" "$out.log"
    wait $pid 2>/dev/null
    status=$?
    launcher=""
    [ $status -eq "$want" ] || fail "$name ended with $status after SIG$signal, not $want" "$out.log"
    nobody_left "$out"
}
launch_and_stop local-int INT 130 -n 2
holds 'rank 1\] stopped by signal 2 after step' "$work/local-int.log" "SIGINT to launch -n 2"
launch_and_stop local-kill KILL 137 -n 2

mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N "" -f "$work/host" && ssh-keygen -q -t ed25519 -N "" -f "$work/user"
cp "$work/user.pub" "$work/authorized"
chmod 700 "$work"
port=$((31000 + $$ % 1000))
/usr/sbin/sshd -D -e -f /dev/null -p $port -h "$work/host" -o ListenAddress=127.0.0.1 -o UsePAM=no \
    -o StrictModes=no -o AuthorizedKeysFile="$work/authorized" -o PidFile=none 2>"$work/sshd.log" &
sshd_pid=$!
export LAUNCH_SSH="ssh -F none -p $port -i $work/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
within 5 bash -c ": <>/dev/tcp/127.0.0.1/$port" 2>/dev/null || fail "sshd does not start" "$work/sshd.log"
export CONVOY_COORD=127.0.0.1:$((port + 1000)) CONVOY_THREADS=1
printf '# two ranks\n127.0.0.1\nlocalhost\n' >"$work/hostfile"
tools/launch --hostfile "$work/hostfile" -- ./trainer "${small[@]}" --out "$work/ssh run" >"$work/log" 2>&1 ||
    fail "two ranks over SSH ended with $?" "$work/log"
holds '^\[rank 1\] done: 5 steps' "$work/log" "launch --hostfile"
[ -e "$work/ssh run/latest" ] || fail "a word with a space does not arrive over SSH" "$work/log"
launch_and_stop ssh-term TERM 143 --hosts 127.0.0.1,localhost
holds 'rank 1\] stopped by signal 15 after step' "$work/ssh-term.log" "SIGTERM to launch --hosts"
launch_and_stop ssh-kill KILL 137 --hosts 127.0.0.1,localhost
(cd "$work" && "$OLDPWD/tools/launch" --hosts 127.0.0.1 -- ./nothing 2>"$work/log")
[ $? -eq 127 ] || fail "a missing program is not status 127" "$work/log"

echo "deploy: 4 Open MPI"
CONVOY_COORD=127.0.0.1:$((port + 1100)) timeout 30 mpirun --allow-run-as-root --oversubscribe -n 3 \
    ./trainer "${small[@]}" --out "$work/mpi" >"$work/log" 2>&1 || fail "mpirun ended with $?" "$work/log"
holds '^\[rank 2\] done: 5 steps' "$work/log" "mpirun -n 3"

echo "deploy: 5 a start as in Swarm"
if [ "$(id -u)" -ne 0 ] || ! CONVOY_HOSTS=$netns tests/lab/hosts up 4 2>/dev/null; then
    echo "deploy: left out: network namespaces cannot be made here"
    exit 0
fi
names=/etc/netns/$netns-1/hosts
for host in 1 2 3 4; do
    mkdir -p "/etc/netns/$netns-$host" # `ip netns exec` shows its files as those of /etc
    [ $host -eq 1 ] && echo "127.0.0.1 localhost" >"$names" || ln "$names" "/etc/netns/$netns-$host/hosts"
done
CONVOY_TOKEN=$(./trainer token)
export CONVOY_TOKEN CONVOY_COORD=tasks.trainer:29400 CONVOY_WORLD=3 CONVOY_JOIN_TIMEOUT=30
task() { # slot host: in the background, its process in $pid
    echo "10.77.0.$2 tasks.trainer" >>"$names"
    SWARM_TASK_SLOT=$1 ip netns exec "$netns-$2" ./trainer "${small[@]}" --out "$work/stack" >"$work/task$1-$2" 2>&1 &
    pid=$!
}
set +m
task 2 1
one=$pid
disown "$one"
within 10 grep -qs 'waiting for the coordinator at tasks.trainer' "$work/task2-1" || fail "no patience" "$work/task2-1"
task 1 4 # serves the coordinator; the addresses of the others come before its own
zero=$pid
within 10 grep -qs '2 of 3 joined, missing rank 2' "$work/task1-4" || fail "slot 2 does not find slot 1" "$work/task2-1"
kill -9 $one
within 10 grep -qs '1 of 3 joined, missing rank 1-2' "$work/task1-4" || fail "the lost task stays a member" "$work/task1-4"
task 2 2 # the old address stays among the names
one=$pid
is_back() { [ "$(grep -c '2 of 3 joined, missing rank 2' "$work/task1-4")" -eq 2 ]; }
within 10 is_back || fail "slot 2 does not come back" "$work/task1-4"
task 3 3
for p in $zero $one $pid; do
    wait "$p" || fail "a task ended with $?" "$work/task1-4"
done
holds ' 1 +1  10\.77\.0\.2:29400' "$work/task1-4" "the table of ranks"
holds 'rank 0\] done: 5 steps' "$work/task1-4" "three tasks"
echo "deploy: ok, ${SECONDS} s"
