#!/bin/sh
# Fills a home with everything that a daemon keeps, packs it as NAME.tar.gz, and
# records in NAME.json what that version's API answers about it. The script
# home_kept.txtar opens each of these homes with the daemon of today.
# A home that is committed is not made again.
#
#   usage: make.sh CLOCHE NAME     on Linux, as root or as a user
set -eu
cloche=$1 name=$2
dir=$(mktemp -d)
export CLOCHE_HOME="$dir/home" CLOCHE_HOST='' KEPT_SECRET='kept for tests of upgrades'
mkdir -m 700 "$CLOCHE_HOME" "$dir/skill"
serve=
trap '[ -z "$serve" ] || kill "$serve" 2>/dev/null || true; rm -rf "$dir"' EXIT

start() {
  "$cloche" serve 2>> "$dir/log" &
  serve=$!
  for _ in $(seq 200); do "$cloche" ls >/dev/null 2>&1 && return; sleep 0.1; done
  cat "$dir/log" >&2
  exit 1
}

# The test moves the dates of ended sandboxes, which are kept for a day.
cat > "$CLOCHE_HOME/policy.yaml" <<END
version: 1
max_sandboxes_per_tenant: 20
profiles:
  wide: {extends: agent, defaults: {timeout: 1h}}
secrets:
  - {name: kept, from: {env: KEPT_SECRET}, hosts: [api.example.com], mode: env}
END
"$cloche" policy check "$CLOCHE_HOME/policy.yaml" >&2
start

"$cloche" key create --tenant acme --name ci > /dev/null
printf -- '---\nname: kept\ndescription: a skill of an earlier version\n---\nDo it.\n' > "$dir/skill/SKILL.md"
"$cloche" skill add "$dir/skill"

"$cloche" workspace create plain
"$cloche" run --workspace plain -- sh -c 'mkdir sub && echo plain > sub/file && ln -s sub/file link'
if [ "$(id -u)" = 0 ]; then
  "$cloche" workspace create --size 64MiB sized
  "$cloche" run --workspace sized -- sh -c 'echo sized > file'
  # What was written to the layer is not committed.
  "$cloche" create --name layered --workspace plain:/w --layered
  "$cloche" exec layered -- sh -c 'echo changed > /w/sub/file; echo new > /w/new'
  "$cloche" stop layered
fi

# A private workspace, and a process whose output is kept.
"$cloche" create --name ended --label version=first --profile wide --secret kept=KEPT:env
"$cloche" exec ended -- sh -c 'echo private > file'
"$cloche" start --id counted ended -- sh -c 'for i in 1 2 3; do echo line $i; done; echo error >&2; exit 3'
"$cloche" wait ended counted || true
"$cloche" snapshot create --name files ended
"$cloche" stop ended

# This one is removed and leaves a tombstone.
"$cloche" create --name removed
"$cloche" rm -f removed

cat > "$dir/program.yaml" <<END
spec: {image: host, network: none}
run: [[sh, -c, "echo ran"]]
score: {commands: ["echo 1"]}
END
"$cloche" program run "$dir/program.yaml"

# This one runs when the machine loses power: its record says that it runs.
"$cloche" create --name running --idempotency-key kept-key --label version=first
"$cloche" exec running -- sh -c 'echo running > file'
kill -9 "$serve"; wait "$serve" || true; serve=
for p in /proc/[0-9]*; do
  case $(readlink "$p/exe" 2>/dev/null) in "$CLOCHE_HOME"/*) kill -9 "${p#/proc/}" 2>/dev/null || true ;; esac
done
# Images are made again from the machine.
tar -C "$dir" --sparse --numeric-owner --exclude='home/*.sock' --exclude='home/images/*' --exclude='home/bin/*' -cf - home | gzip -9n > "$name.tar.gz"

start
{
  sep='{'
  for route in /v1/sandboxes /v1/sandboxes/ended /v1/sandboxes/ended/processes /v1/sandboxes/ended/processes/counted \
    /v1/sandboxes/running /v1/workspaces /v1/workspaces/plain /v1/snapshots /v1/snapshots/files /v1/skills /v1/skills/kept \
    /v1/programs /v1/keys /v1/secrets /v1/recordings /v1/approvals; do
    printf '%s"%s":' "$sep" "$route"
    curl -sS --unix-socket "$CLOCHE_HOME/cloche.sock" "http://localhost$route"
    sep=,
  done
  printf '}\n'
} > "$name.json"
