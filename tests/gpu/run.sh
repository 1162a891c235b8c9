#!/usr/bin/env bash
# Checks and measures the CUDA device on a machine with a GPU, from .bundle/pleiad.tar.xz (tests/gpu/bundle.sh).
#   tests/gpu/run.sh [--only SECTION,...] [--skip SECTION,...] [--seconds N] [--device cuda|cpu]
#     --only, --skip  sections by name, of: golden equality ipc sanitizer stage layer model engine random e2e server wire resident racecheck
#     --seconds N     for the whole run; sections that find no time left are named as not run
#     --device cpu    the script itself, tried without a GPU
# The most telling section comes first. Results go to $OUT, else .bundle/out: log.txt has everything, NAME.json the
# figures. Every section ends in a line `PASS|FAIL|SKIPPED name seconds`, the run in a table of them. Exits 1 on a FAIL.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. tests/gpu/sections.sh

only="${all_sections[*]}" skip="" seconds=100000
export device=cuda
while [ $# -gt 0 ]; do
  case "$1" in
    --only) only=${2//,/ }; shift ;;
    --skip) skip=${2//,/ }; shift ;;
    --seconds) seconds=$2; shift ;;
    --device) device=$2; shift ;;
    --section) section=$2; "section_$2"; exit ;;  # one section, as the run calls itself
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "run.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
  shift
done
for name in $only $skip; do
  [[ -v "budget[$name]" ]] || { echo "run.sh: no section '$name'; there are: ${all_sections[*]}" >&2; exit 2; }
done
[ "$device" = cuda ] || [ "$device" = cpu ] || { echo "run.sh: --device '$device': must be cuda or cpu" >&2; exit 2; }

export out=${OUT:-$PWD/.bundle/out} work=$PWD/.bundle/work tree=$PWD/.bundle/tree
rm -rf "$work" "$tree"
mkdir -p "$out" "$work" "$tree"
rm -f "$out"/{log.txt,summary.txt}
tar -C "$tree" -xf .bundle/pleiad.tar.xz || { echo "run.sh: no .bundle/pleiad.tar.xz; tests/gpu/bundle.sh makes it" >&2; exit 1; }
# shellcheck disable=SC1091
. "$tree/BUNDLE"

# A newer libstdc++ of this machine serves both; an older one would break what else runs in the process.
for name in libstdc++.so.6 libgcc_s.so.1; do
  here=$(ldconfig -p 2> /dev/null | awk -v name="$name" '$1 == name && /x86-64/ {print $NF; exit}')
  [ -n "$here" ] || continue
  newest=$(printf '%s\n' "$(strings -a "$here" | grep -E '^(GLIBCXX|GCC)_[0-9.]+$')" | sort -V | tail -n 1)
  ours=$(strings -a "$tree/lib/$name" 2> /dev/null | grep -E '^(GLIBCXX|GCC)_[0-9.]+$' | sort -V | tail -n 1)
  [ "$(printf '%s\n%s\n' "$ours" "$newest" | sort -V | tail -n 1)" != "$newest" ] || rm -f "$tree/lib/$name"
done

# Tests look for golden data and binaries where they were built.
# shellcheck disable=SC2154  # source_dir and build_dirs come from BUNDLE
if [ "$(readlink -f "$source_dir")" != "$PWD" ] && [ ! -e "$source_dir" ]; then
  mkdir -p "$(dirname "$source_dir")" && ln -s "$PWD" "$source_dir"
fi
# shellcheck disable=SC2154
for folder in $build_dirs; do [ -e "$folder" ] || { mkdir -p "$(dirname "$folder")" && ln -s "$tree/build" "$folder"; }; done

for candidate in "${PYTHON:-}" python3 /usr/bin/python3; do
  [ -n "$candidate" ] && "$candidate" -c 'import grpc, google.protobuf, numpy' 2> /dev/null && python=$candidate && break
done
export python=${python:-} GPU_BUNDLE=$tree PYTHONUNBUFFERED=1

{
  echo "commit ${commit:-?}, built ${built:-?}, device $device, $(nproc) cores"
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader 2> /dev/null || echo "no GPU"
} | tee "$out/log.txt"

started=$SECONDS
results=() failed=0
declare -A fate=()
for name in "${all_sections[@]}"; do
  [[ " $only " == *" $name "* && " $skip " != *" $name "* ]] || { fate[$name]="not asked for"; continue; }
  left=$((seconds - (SECONDS - started)))
  [ "$left" -ge 15 ] || { fate[$name]="no time left"; continue; }
  limit=$((budget[$name] < left ? budget[$name] : left))
  begun=$SECONDS
  printf '\n===== %s (at most %d s)\n' "$name" "$limit" | tee -a "$out/log.txt"
  : > "$work/$name.table"
  : > "$work/$name.log"
  timeout --kill-after=10 "$limit" "$0" --device "$device" --section "$name" > "$work/$name.log" 2>&1 &
  running=$!
  tail -q -n +1 -f --pid="$running" "$work/$name.log" >> "$out/log.txt" &  # whatever ends the run, the log is there
  copier=$!
  wait "$running"
  code=$?
  wait "$copier"
  case "$code" in
    0) verdict=PASS ;;
    77) verdict=SKIPPED ;;
    *) verdict=FAIL failed=1 ;;
  esac
  case "$code" in
    0) ;;
    124 | 137) echo "  ended at its limit of $limit s" >> "$work/$name.table" ;;
  esac
  [ "$verdict" != FAIL ] || tail -n "${tail_lines:-30}" "$work/$name.log" | cut -c 1-220
  cut -c 1-160 "$work/$name.table" | tail -n 45
  line="$verdict $name $((SECONDS - begun)) s"
  echo "$line" | tee -a "$out/log.txt"
  results+=("$line")
done

{
  printf '\n----- summary\n'
  printf '%s\n' "${results[@]}"
  for name in "${all_sections[@]}"; do [ -z "${fate[$name]:-}" ] || echo "NOT RUN $name (${fate[$name]})"; done
} | tee "$out/summary.txt"
exit "$failed"
