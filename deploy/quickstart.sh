#!/usr/bin/env bash
# From a bare Debian 12 to a checked answer: installs, builds, serves the golden checkpoint on a temporary Unix socket,
# replays a captured generation over gRPC, with a rewind, a snapshot, a release and a restore in the middle, and
# compares what comes back with what the reference computed. Exits 0 only when all of it agreed.
#   deploy/quickstart.sh [--keep] [--build-dir DIR] [--checkpoint DIR]
#     --keep            leaves the server running and prints three next commands
#     --build-dir DIR   uses what is built there; installs and builds nothing
#     --checkpoint DIR  serves and compares another copy of tests/golden/tiny-n3h8
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$root/deploy/quickstart.sh"; }

keep=0
build=
checkpoint=$root/tests/golden/tiny-n3h8
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=1 ;;
    --build-dir | --checkpoint)
      [ $# -gt 1 ] || { echo "quickstart.sh: $1 needs a folder" >&2; exit 2; }
      [ "$1" = --build-dir ] && build=$2 || checkpoint=$2
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

# Settings of other servers are not for this one.
for name in "${!PLEIAD_@}"; do unset "$name"; done

phase() { printf '\n=== [%2d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

if [ -z "$build" ]; then
  phase "install: Debian packages"
  bash "$root/deploy/install-deps.sh" --build
  # A release build that is there already is brought up to date; else only the two programs are built, no tests.
  build=$root/build/release
  if [ ! -f "$build/build.ninja" ]; then
    build=$root/build/quickstart
    launcher=()
    command -v ccache > /dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    phase "configure: $build"
    cmake -S "$root" --preset release -B "$build" -DPLEIAD_TESTS=OFF "${launcher[@]}"
  fi
  phase "build: pleiad-server and pleiad, with $(nproc) jobs"
  cmake --build "$build" -j "$(nproc)" --target pleiad-server pleiad
fi
server=$build/server/pleiad-server
pleiad=$build/client/cli/pleiad
for program in "$server" "$pleiad"; do
  [ -x "$program" ] || { echo "quickstart.sh: $program: not built" >&2; exit 1; }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/pleiad.XXXXXX")
pid=
clean_up() {
  [ -z "$pid" ] || { kill -KILL "$pid" && wait "$pid"; } 2> /dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

phase "serve: $checkpoint"
mkfifo "$work/stdout"
"$server" --model "$checkpoint" --listen "unix:$work/socket" --metrics-listen 127.0.0.1:0 \
  > "$work/stdout" 2> "$work/log" &
pid=$!
exec 3< "$work/stdout"
metrics=
while read -r line <&3; do
  case "$line" in "pleiad-server ready "*" metrics "*) metrics=${line##* metrics }; break ;; esac
done
if [ -z "$metrics" ]; then
  echo "quickstart.sh: the server ended before it was ready:" >&2
  cat "$work/log" >&2
  exit 1
fi
echo "$line"

# replay PREFIX ARGS...: 0 when all agreed, 1 when not; anything else ends the script.
agreed=1
replay() {
  local prefix=$1 rc=0
  shift
  phase "replay: $prefix, halfway with a rewind, a snapshot, a release and a restore"
  "$pleiad" run --server "unix:$work/socket" --trace "$checkpoint/golden.safetensors" --prefix "$prefix" --disturb \
    "$@" || rc=$?
  [ $rc -le 1 ] || { echo "quickstart.sh: pleiad run ended with $rc; the server's log:" >&2; cat "$work/log" >&2; exit 1; }
  [ $rc -eq 0 ] || agreed=0
}
replay run.layer2
replay layer2 --steps 23,1,9,1,1,1,25

phase "metrics: steps and rows, from http://$metrics/metrics"
exec 4<> "/dev/tcp/${metrics%:*}/${metrics##*:}"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&4
scrape=$(cat <&4)
exec 4>&-
grep -E '^pleiad_(tokens|forward_items|step_phase_seconds_(sum|count)|batch_tokens_(sum|count)|row_lookups|sequences)' \
  <<< "$scrape"

if [ $keep -eq 1 ] && [ $agreed -eq 1 ]; then
  trap - EXIT
  cat << NEXT

All agreed. The server keeps running (process $pid, log $work/log). Next:
  $pleiad info --server unix:$work/socket
  $pleiad bench --server unix:$work/socket --sequences 16 --steps 100
  kill $pid
NEXT
  exit 0
fi

phase "stop: SIGTERM"
kill -TERM "$pid"
rc=0
wait "$pid" || rc=$?
pid=
if [ $rc -ne 0 ]; then
  echo "quickstart.sh: the server ended with $rc instead of 0" >&2
  agreed=0
fi
if [ $agreed -ne 1 ]; then
  printf '\nFAILED: not all agreed with the reference\n'
  exit 1
fi
printf '\nAll agreed, and the server stopped with 0. Next: README.md\n'
