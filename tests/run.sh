#!/usr/bin/env bash
# All that continuous integration runs: builds and tests in three configurations, then the fuzz targets.
#   tests/run.sh [--full] [--only release|asan|tsan|fuzz] [--no-install] [--fuzz-seconds N]
#     --full            soaks too; tests of what is shipped, deploy.* and soak.*, fail where they would be skipped
#     --only PHASE      that phase alone; may be repeated
#     --no-install      skips deploy/install-deps.sh
#     --fuzz-seconds N  for each fuzz target (default 60)
# The last line is "N passed, N failed", with ", N skipped" when some were; exits 1 when any failed.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$root/tests/run.sh"; }

full=0
install=1
fuzz_seconds=60
phases=()
while [ $# -gt 0 ]; do
  case "$1" in
    --full) full=1 ;;
    --no-install) install=0 ;;
    --only) phases+=("${2:-}"); shift ;;
    --fuzz-seconds) fuzz_seconds=${2:-}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "run.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
[ ${#phases[@]} -gt 0 ] || phases=(release asan fuzz tsan)
for phase in "${phases[@]}"; do
  case "$phase" in
    release | asan | tsan | fuzz) ;;
    *) echo "run.sh: --only '$phase': must be release, asan, tsan or fuzz" >&2; exit 2 ;;
  esac
done

passed=0 failed=0 skipped=0
failures=() skips=()
fail() { failed=$((failed + 1)); failures+=("$1"); }
heading() { printf '\n=== [%3d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
finish() {
  heading "done"
  # A suite of many instances is a line: the last lines of a long output are often all that is kept.
  [ ${#skips[@]} -eq 0 ] ||
    printf '%s\n' "${skips[@]}" | sed -E 's,^([^ ]+: )([^/ ]+/)?([^/ ]+).*,\1\3,' | sort | uniq -c |
    sed -E 's/^ *([0-9]+) (.*)/skipped: \2 (\1)/'
  for name in "${failures[@]}"; do echo "failed: ${name:0:200}"; done
  local line="$passed passed, $failed failed"
  [ $skipped -eq 0 ] || line+=", $skipped skipped"
  echo "$line"
  [ $failed -eq 0 ] && [ $passed -gt 0 ]
  exit
}

jobs=$(nproc)
launcher=()
command -v ccache > /dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

# Clang 14's sanitizers want their shadow where kernels with much address randomisation may put a mapping.
no_aslr=(setarch "$(uname -m)" -R)
"${no_aslr[@]}" true 2> /dev/null || no_aslr=()

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1:second_deadlock_stack=1:suppressions=$root/tests/tsan.supp

# build PRESET: configures and builds everything of it, once in a run.
declare -A built
build() {
  local preset=$1 linker=() wrap=()
  [ -z "${built[$preset]:-}" ] || return "${built[$preset]}"
  if [ "$preset" != release ]; then
    wrap=("${no_aslr[@]}")
    command -v ld.lld > /dev/null && linker=(-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld)
  fi
  heading "$preset: build"
  local log=build/$preset.log
  mkdir -p build
  cmake --preset "$preset" "${launcher[@]}" "${linker[@]}" > "$log" 2>&1 &&
    "${wrap[@]}" cmake --build "build/$preset" -j "$jobs" >> "$log" 2>&1
  built[$preset]=$?
  if [ "${built[$preset]}" -ne 0 ]; then
    grep -E -A12 '(error|Error)|FAILED' "$log" | head -n 80
    fail "$preset: build (build/$preset.log)"
  fi
  return "${built[$preset]}"
}

# run_tests PRESET: ctest's own counts.
run_tests() {
  local preset=$1 wrap=() labels='^(bench|soak)$'
  [ "$preset" = release ] || wrap=("${no_aslr[@]}")
  [ $full -eq 0 ] || labels='^bench$'
  heading "$preset: tests"
  local junit=$root/build/$preset/junit.xml
  rm -f "$junit"
  "${wrap[@]}" ctest --test-dir "build/$preset" -j "$jobs" -LE "$labels" --no-tests=error --output-on-failure \
    --output-junit "$junit"
  local rc=$?
  # The attributes of the first element are the totals, one a line.
  count() { grep -m1 -oP "^\t$1=\"\K[0-9]+" "$junit" 2> /dev/null || echo -1; }
  local total bad skip disabled
  total=$(count tests) bad=$(count failures) skip=$(count skipped) disabled=$(count disabled)
  if [ "$total" -le 0 ] || [ "$bad" -lt 0 ] || [ "$skip" -lt 0 ] || [ "$disabled" -lt 0 ]; then
    fail "$preset: ctest ended with $rc and without totals"
    return
  fi
  [ $rc -eq 0 ] || [ "$bad" -gt 0 ] || fail "$preset: ctest ended with $rc"
  skip=$((skip + disabled))
  named() { sed -n "s/.*<testcase name=\"\([^\"]*\)\".*status=\"$1\".*/\1/p" "$junit"; }
  passed=$((passed + total - bad - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
  while read -r name; do failures+=("$preset: $name"); done < <(named fail)
  while read -r name; do
    if [ $full -eq 1 ] && [[ $name =~ ^(deploy|soak)\. ]]; then
      skipped=$((skipped - 1))
      fail "$preset: $name (skipped)"
    else
      skips+=("$preset: $name")
    fi
  done < <(named '\(notrun\|disabled\)')
}

# Each target runs on a copy of its seeds; what it finds stays in build/asan/fuzz/NAME.
fuzz_one() {
  local target=$1 name work
  name=$(basename "$target")
  work=$root/build/asan/fuzz/$name
  mkdir -p "$work/corpus"
  cp "$root/tests/fuzz/seeds/${name%_fuzz}"/* "$work/corpus/"
  "${no_aslr[@]}" "$target" -max_total_time="$fuzz_seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix="$work/" "$work/corpus" > "$work/log" 2>&1
  echo $? > "$work/rc"
}

run_fuzz() {
  heading "fuzz: $fuzz_seconds s each, two at a time"
  local targets=() target name work
  for target in build/asan/tests/fuzz/*_fuzz; do [ -x "$target" ] && targets+=("$root/$target"); done
  if [ ${#targets[@]} -eq 0 ]; then
    fail "fuzz: no target build/asan/tests/fuzz/*_fuzz"
    return
  fi
  rm -rf build/asan/fuzz
  for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    fuzz_one "$target" &
  done
  wait
  for target in "${targets[@]}"; do
    name=$(basename "$target")
    work=build/asan/fuzz/$name
    if [ "$(cat "$work/rc")" = 0 ]; then
      passed=$((passed + 1))
      echo "$name: $(grep -m1 'Done ' "$work/log")"
    else
      fail "fuzz: $name"
      tail -n 60 "$work/log"
    fi
  done
}

if [ $install -eq 1 ]; then
  heading "packages"
  bash deploy/install-deps.sh --build --test || { fail "packages"; finish; }
fi
for phase in "${phases[@]}"; do
  if [ "$phase" = fuzz ]; then
    build asan && run_fuzz
  else
    build "$phase" && run_tests "$phase"
  fi
done
finish
