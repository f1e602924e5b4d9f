#!/usr/bin/env bash
# Trains from shards on real servers: nginx with and without TLS (a certificate authority of its own),
# and moto's S3, which checks signatures. The losses are those of the same files on this machine; a
# server that is killed in mid-epoch and comes back changes nothing; wrong credentials are named; a
# password in a URL is not printed or saved.
# usage: tests/remote.sh
set -u
cd "$(dirname "$0")/.." || exit
. tests/shell_support
trainer=${TRAINER:-./trainer}
[ -x "$trainer" ] || make -s trainer || exit
need nginx:nginx-light openssl:openssl curl:curl python3:python3 shellcheck:shellcheck
shellcheck -x -S warning tests/remote.sh tests/shell_support || fail "shellcheck finds mistakes"
work=$(mktemp -d "${TMPDIR:-/tmp}/convoy-remote-XXXXXX")
chmod 755 "$work"
servers=()
finish() {
    for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM

# Twelve shards of 120 pictures, in which the colour is the class, made by Python's tarfile.
mkdir -p "$work/www/private"
python3 - "$work/www" <<'PY' || fail "cannot make the shards"
import io, random, sys, tarfile
random.seed(1)
for shard in range(12):
    with tarfile.open(f"{sys.argv[1]}/train-{shard:02}.tar", "w") as tar:
        for i in range(120):
            label = random.randrange(3)
            pixels = bytearray(byte * 100 >> 8 for byte in random.randbytes(64 * 48 * 3))
            for at in range(label, len(pixels), 3): pixels[at] += 120
            for end, content in ("ppm", b"P6 64 48 255\n" + bytes(pixels)), ("cls", str(label).encode()):
                member = tarfile.TarInfo(f"{shard:02}{i:03}.{end}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
PY
port=$((20000 + $$ % 10000))
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=convoy-test -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$work/key" -out "$work/ca" 2>/dev/null || fail "cannot make a certificate"
printf 'ann:%s\n' "$(openssl passwd -apr1 hush-hush)" >"$work/users"
cat >"$work/nginx.conf" <<CONF
daemon off; master_process off; pid $work/pid; error_log $work/errors; worker_processes 1;
events {}
http {
    access_log $work/access;
    client_body_temp_path $work/a; proxy_temp_path $work/b; fastcgi_temp_path $work/c;
    uwsgi_temp_path $work/d; scgi_temp_path $work/e;
    server {
        listen 127.0.0.1:$port; listen 127.0.0.1:$((port + 1)) ssl;
        ssl_certificate $work/ca; ssl_certificate_key $work/key;
        root $work/www;
        location /slow/ { alias $work/www/; limit_rate 100k; }
        location /private/ { alias $work/www/; auth_basic x; auth_basic_user_file $work/users; }
    }
}
CONF
start_nginx() {
    nginx -c "$work/nginx.conf" -e "$work/errors" &
    nginx_pid=$! servers+=($!)
    within 10 curl -s -o /dev/null "http://127.0.0.1:$port/" || fail "nginx does not start" "$work/errors"
}
start_nginx

shards='train-{00..11}.tar'
train() { # name, then options: into $work/name, its output in $work/name.txt
    local name=$1
    shift
    CONVOY_PREFLIGHT=off HOME=$work/user "$trainer" --size 32 --batch 16 --epochs 1 --threads 1 --decode-threads 1 --log-every 1 \
        --out "$work/$name" "$@" >"$work/$name.txt" 2>&1
}
losses() { grep -o '"loss":[^,}]*' "$work/$1/log.jsonl"; }
same() { # name: trained to the losses of the local files, or of the run $2
    [ "$(losses "$1")" = "$(losses "${2:-local}")" ] || fail "$1: other losses than from local files" "$work/$1.txt"
}
refused() { # name, pattern in its error, then options
    local name=$1 pattern=$2
    shift 2
    ! train "$name" "$@" || fail "$name: it trains"
    holds "error: .*$pattern" "$work/$name.txt" "$name"
}

# The servers hold the shards without an index first: they are read once, and remembered.
mkdir "$work/local-files" && cp "$work"/www/*.tar "$work/local-files"
train local --data "$work/local-files/$shards" || fail "training from local files" "$work/local.txt"
[ "$(losses local | wc -l)" -ge 30 ] || fail "it logged too few losses" "$work/local.txt"
train plain --data "http://127.0.0.1:$port/$shards" || fail "training over HTTP" "$work/plain.txt"
same plain
holds "without a convoy.index" "$work/plain.txt" "the log"
cp "$work/local-files/convoy.index" "$work/www"
rm -r "$work/user"
SSL_CERT_FILE=$work/ca train tls --data "https://127.0.0.1:$((port + 1))/$shards" --cache "$work/cache:100M" ||
    fail "training over HTTPS" "$work/tls.txt"
same tls
! grep -q "without a convoy.index" "$work/tls.txt" || fail "the index beside the shards is not used" "$work/tls.txt"
before=$(wc -c <"$work/access")
SSL_CERT_FILE=$work/ca train cached --data "https://127.0.0.1:$((port + 1))/$shards" --cache "$work/cache:100M" ||
    fail "training from the cache" "$work/cached.txt"
same cached
bytes=$(tail -c +"$((before + 1))" "$work/access" | awk '{ sum += $10 } END { print sum }')
[ "$bytes" -lt 200000 ] || fail "$bytes bytes came from the server although they are in the cache"
echo "remote: HTTP, HTTPS and the cache give the losses of local files"

refused no-authority "SSL_CERT_FILE" --data "https://127.0.0.1:$((port + 1))/$shards"
refused missing "answers 404; there is no such object" --data "http://127.0.0.1:$port/none-{00..11}.tar"
refused no-password "answers 401; access is refused" --data "http://127.0.0.1:$port/private/$shards"
refused wrong-password "answers 401" --data "http://ann:hush-wrong@127.0.0.1:$port/private/$shards"
train password --data "http://ann:hush-hush@127.0.0.1:$port/private/$shards" || fail "training with a password" "$work/password.txt"
same password
! grep -r "hush" "$work"/*.txt "$work"/*/ --include='*.txt' --include='*.json*' -l || fail "a password is printed or saved"
http_proxy=http://127.0.0.1:9 refused proxy "127.0.0.1 port 9" --data "http://localhost.invalid:$port/$shards"
echo "remote: what is wrong is named, and no password"

# Killed in the middle of a slow epoch, and back a moment later. Eight shards come at once; four are left.
train window --shuffle window=120 --data "$work/local-files/$shards" || fail "training in windows" "$work/window.txt"
: >"$work/killed.txt"
train killed --shuffle window=120 --data "http://127.0.0.1:$port/slow/$shards" &
job=$!
within 30 grep -q "step 3/" "$work/killed.txt" || fail "it does not begin" "$work/killed.txt"
kill -KILL "$nginx_pid"
wait "$nginx_pid" 2>/dev/null
within 20 grep -q "trying again" "$work/killed.txt" || fail "it does not notice that the server is gone" "$work/killed.txt"
start_nginx
wait $job || fail "it does not survive that the server was away" "$work/killed.txt"
holds "answers again after" "$work/killed.txt" "the log"
same killed window
echo "remote: a server that was killed and came back changes nothing"

# S3. moto checks signatures from the 17th call on.
venv=build/moto
[ -x $venv/bin/moto_server ] || { python3 -m venv $venv && $venv/bin/pip install -q 'moto[server]'; } >"$work/pip" 2>&1 ||
    { echo "remote: S3 is not tested: moto is missing and cannot be installed" && exit 0; }
INITIAL_NO_AUTH_ACTION_COUNT=17 $venv/bin/moto_server -H 127.0.0.1 -p $((port + 2)) >"$work/moto" 2>&1 &
servers+=($!)
export AWS_ENDPOINT_URL=http://127.0.0.1:$((port + 2)) AWS_DEFAULT_REGION=us-east-1
within 20 curl -s -o /dev/null "$AWS_ENDPOINT_URL/moto-api/data.json" || fail "moto does not start" "$work/moto"
keys=$(AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=y $venv/bin/python - "$work/www" <<'PY'
import boto3, glob, json, os, sys
s3, iam = boto3.client("s3"), boto3.client("iam")
s3.create_bucket(Bucket="photos")
for path in sorted(glob.glob(sys.argv[1] + "/*.*")):
    with open(path, "rb") as file:
        s3.put_object(Bucket="photos", Key="a set/" + os.path.basename(path), Body=file)
iam.create_user(UserName="ann")
allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="ann", PolicyName="all", PolicyDocument=json.dumps(allow))
key = iam.create_access_key(UserName="ann")["AccessKey"]
print(key["AccessKeyId"], key["SecretAccessKey"])
PY
) || fail "cannot fill moto" "$work/moto"
read -r id secret <<<"$keys"
AWS_ACCESS_KEY_ID=$id AWS_SECRET_ACCESS_KEY=$secret train s3 --data "s3://photos/a set/$shards" || fail "training from S3" "$work/s3.txt"
same s3
AWS_ACCESS_KEY_ID=$id AWS_SECRET_ACCESS_KEY=wrong$secret refused s3-wrong "answers 403 \(SignatureDoesNotMatch\); check AWS_" \
    --data "s3://photos/a set/$shards"
refused s3-unsigned "answers 403.*the request was not signed" --data "s3://photos/a set/$shards"
! grep -re "$secret" "$work"/*.txt "$work"/*/ --include='*.txt' --include='*.json*' -l || fail "a secret is printed or saved"
echo "remote: ok, S3 with it, ${SECONDS} s"
