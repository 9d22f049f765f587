#!/usr/bin/env bash
# The contract of engines, proved with an OCI runtime that starts a virtual machine for
# each sandbox: on a machine with KVM, as root. The argument is the runtime, krun or the
# absolute path of another; without one it is krun. What it prints at the end is what
# docs/engines.md may say of the runtime; until somebody has run it that is "untested",
# or why it cannot be.
set -euo pipefail
cd "$(dirname "$0")/.."
runtime=${1:-krun}

fail() { printf '%s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "run it as root: the engine oci prepares what the runtime is given"
[ -r /dev/kvm ] && [ -w /dev/kvm ] || fail "this machine has no /dev/kvm that can be used: nothing was tried"

export CGO_ENABLED=0
go run ./cmd/cloche doctor || true
CLOCHE_TEST_OCI=$runtime go test -count=1 -v -timeout 20m -run '^TestNamedRuntime$' ./internal/engine/oci
