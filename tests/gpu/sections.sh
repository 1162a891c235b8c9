# The sections of tests/gpu/run.sh, which sources this file. Each runs as a process of its own, with its time limit.
# A section prints its log; what `say` prints is shown in the reply too. Its exit code: 0 pass, 77 skipped, else fail.
# shellcheck shell=bash disable=SC2034,SC2154  # device, section, out, work, tree and python come from run.sh

all_sections=(golden equality ipc sanitizer stage layer model engine random e2e server wire resident racecheck)
declare -A budget=([golden]=200 [equality]=200 [ipc]=150 [sanitizer]=60 [stage]=300 [layer]=240 [model]=200 [engine]=240
  [random]=300 [e2e]=400 [server]=360 [wire]=120 [resident]=420
  [racecheck]=400)  # seconds

# Tests that belong to the section random, by name, and those small enough for compute-sanitizer.
long_tests=${GPU_LONG_TESTS:-*TenThousand*:*HundredThousand*}
sanitizer_tests=${GPU_SANITIZER_TESTS:-*SmallBatchesAgree/H24*:*SmallBatchesAgree/H29*:*SmallBatchesAgree/H256*:*SmallBatchesAgree/H768*:*EmbeddingsAreTheCpus*160*:*CudaHashTest*}

[ -z "${device:-}" ] || export PLEIAD_TEST_DEVICE=$device

say() { echo "$*" | tee -a "$work/$section.table"; }
show() { tee -a "$work/$section.table"; }
ours() { LD_LIBRARY_PATH=$tree/lib "$@"; }
binary() { find "$tree/build" -type f -name "$1" | head -n 1; }

# A section passes when something ran and nothing failed: `check NAME COMMAND...` for each part, `settle` at the end.
ran=0 bad=0
check() {
  local what=$1 start=$SECONDS code
  shift
  "$@"
  code=$?
  case "$code" in
    0) ran=$((ran + 1)) ;;
    77)
      [ "$device" = cuda ] || return
      bad=$((bad + 1)); say "  FAILED $what: nothing of it ran" ;;
    *) bad=$((bad + 1)); say "  FAILED $what (exit code $code, $((SECONDS - start)) s)" ;;
  esac
}
settle() {
  [ "$bad" -eq 0 ] || exit 1
  [ "$ran" -gt 0 ] || exit 77
  exit 0
}

# gtest BINARY FILTER [WRAPPER...]: fails also when every test skipped itself, as tests do that find no GPU.
gtest() {
  local name=$1 filter=$2 path count code counts
  shift 2
  path=$(binary "$name")
  [ -n "$path" ] || { say "  skipped: $name is not in the bundle"; return 77; }
  count=$(ours "$path" --gtest_list_tests --gtest_filter="$filter" | grep -c '^  ')
  [ "$count" -gt 0 ] || { say "  skipped: no test of $name matches $filter"; return 77; }
  local log=$work/gtest.$BASHPID.log start=$SECONDS
  ours "$@" "$path" --gtest_filter="$filter" --gtest_brief=1 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  counts=$(grep -E '^\[  (PASSED|SKIPPED|FAILED )' "$log" | sed -E 's/^\[ +([A-Z]+) +\] ([0-9]+) tests?.*/\2 \1/' | grep -E '^[0-9]' | tr '\n' ' ')
  say "  ${*:+$(basename "$1") ${*:2:2} }$name: $count tests, ${counts:-ended early }exit code $code, $((SECONDS - start)) s"
  [ "$code" -ne 0 ] && grep -E '^\[  FAILED  \] [A-Za-z]' "$log" | sort -u | head -n 15 | cut -c 1-120 | show
  if [ "$code" -eq 0 ] && ! grep -qE '\[  PASSED  \] [1-9]' "$log"; then
    say "  no test of $name ran: all skipped themselves"
    [ "$device" = cpu ] && code=77 || code=1
  fi
  return "$code"
}

# script NAME ARGUMENTS...
script() {
  [ -n "$python" ] || { say "  skipped: no python3 with grpc, google.protobuf and numpy"; return 77; }
  "$python" "tests/gpu/$1" --table "$work/$section.table" "${@:2}"
}
torch() { [ -n "$python" ] && "$python" -c 'import torch, transformers; assert torch.cuda.is_available()' 2> /dev/null; }

section_golden() {
  check device_test gtest device_test '*'
  settle
}

section_equality() {
  check cuda_device_test gtest cuda_device_test "-$long_tests"
  settle
}

section_sanitizer() {
  command -v compute-sanitizer > /dev/null || PATH=$PATH:/usr/local/cuda/bin
  command -v compute-sanitizer > /dev/null || { say "  skipped: no compute-sanitizer"; exit 77; }
  check memcheck gtest cuda_device_test "$sanitizer_tests" \
    compute-sanitizer --tool memcheck --error-exitcode 99 --print-limit 20
  settle
}

# Last: it is slow, and it ends in an error of its own where cuBLAS kernels run, so ours are launched without them.
section_racecheck() {
  command -v compute-sanitizer > /dev/null || PATH=$PATH:/usr/local/cuda/bin
  command -v compute-sanitizer > /dev/null || { say "  skipped: no compute-sanitizer"; exit 77; }
  local bench
  bench=$(binary cuda_stage_bench)
  [ -n "$bench" ] || { say "  skipped: cuda_stage_bench is not in the bundle"; exit 77; }
  # Warps hand over by mbarriers, one lane arriving for all: indirect dependencies, which must be asked for.
  check racecheck bench_table ours compute-sanitizer --tool racecheck --racecheck-indirect-barrier-dependency \
    --error-exitcode 99 --print-limit 12 "$bench" --kernels-only --rounds 1 --tokens 1,3,20,64,300
  settle
}

# Without a stage: what gRPC and the service cost, on this machine's processor.
section_wire() {
  local bench server
  bench=$(binary wire_bench) server=$(binary pleiad-bench-server)
  [ -n "$bench" ] && [ -n "$server" ] || { say "  skipped: no wire_bench or no pleiad-bench-server in the bundle"; exit 77; }
  check wire_bench bench_table ours "$bench" --server "$server" --rounds 7 --json "$out/wire.json"
  settle
}

# Two processes on one GPU: tensors in memory that the client shares.
section_ipc() {
  local bench server
  check cuda_ipc_test gtest cuda_ipc_test '*'
  bench=$(binary cuda_ipc_bench) server=$(binary pleiad-bench-server)
  if [ -n "$bench" ] && [ -n "$server" ]; then
    if [ "$device" = cuda ]; then
      check cuda_ipc_bench bench_table ours "$bench" --server "$server" --json "$out/ipc.json"
      if taskset -c 0-5 true 2> /dev/null; then
        say "  the same, the server on four CPUs, its client on two others, none of the six left to halt"
        printf '#!/bin/sh\nexec taskset -c 0,1,4,5 "%s" "$@"\n' "$server" > "$work/four-cpus"
        chmod +x "$work/four-cpus"
        check "cuda_ipc_bench on six CPUs" awake bench_table ours taskset -c 2,3 "$bench" --server "$work/four-cpus" \
          --json "$out/ipc_awake.json"
      else
        say "  skipped: CPUs 0 to 5 are not all there"
      fi
    fi
  else
    say "  skipped: no cuda_ipc_bench or no pleiad-bench-server in the bundle"
  fi
  settle
}

# awake COMMAND...: meanwhile what else could run on CPUs 0 to 5 runs before a loop that keeps them from halting.
awake() (
  spinners=()
  trap 'kill "${spinners[@]}" 2> /dev/null' EXIT TERM INT
  for cpu in 0 1 2 3 4 5; do
    taskset -c "$cpu" chrt --idle 0 sh -c 'while :; do :; done' &
    spinners+=("$!")
  done
  "$@"
)

section_stage() {
  local bench
  bench=$(binary cuda_stage_bench)
  if [ -n "$bench" ]; then
    check cuda_stage_bench bench_table ours "$bench" --json "$out/stage.json"
  else
    say "  skipped: cuda_stage_bench is not in the bundle"
  fi
  if torch; then
    check reference_bench script reference_bench.py --json "$out/reference.json"
    [ ! -s "$out/stage.json" ] || check ratios script stage_table.py "$out/stage.json" "$out/reference.json"
  else
    say "  skipped: no torch with a GPU"
  fi
  settle
}
bench_table() { "$@" 2>&1 | show; return "${PIPESTATUS[0]}"; }

section_layer() {
  local mode=()
  if ! torch; then
    [ "$device" = cpu ] || { say "  skipped: no torch with a GPU"; exit 77; }
    mode=(--cpu-check)
  fi
  check layer script reference_layer.py "${mode[@]}" --json "$out/layer.json"
  check "a broken weight" finds reference_layer.py "${mode[@]}" --break
  settle
}
# finds SCRIPT --break...: passes when the script finds what was broken and says so by exit code 1.
finds() {
  local table=$work/$section.broken
  : > "$table"
  "$python" "tests/gpu/$1" --table "$table" "${@:2}"
  if [ $? -eq 1 ] && grep -q FAILED "$table"; then
    say "  ok     $* fails, as it must: $(grep -c FAILED "$table") comparisons"
  else
    say "  FAILED $* did not find what was broken"
    return 1
  fi
}

section_model() {
  torch || { say "  skipped: no torch with a GPU"; exit 77; }
  check model script whole_model.py --json "$out/model.json"
  check "a broken weight" finds whole_model.py --break --tokens 48
  settle
}

section_engine() {
  check stage_test gtest stage_test '-*RandomBatches*'
  check engine_test gtest engine_test '*'
  settle
}

section_random() {
  export GPU_RANDOM_BATCHES=${GPU_RANDOM_BATCHES:-10000}
  check random_batches script random_batches.py --device "$device" --batches "$GPU_RANDOM_BATCHES" --json "$out/random.json"
  check "a broken weight" finds random_batches.py --device "$device" --batches 80 --break
  check cuda_device_test gtest cuda_device_test "$long_tests"
  check stage_test gtest stage_test '*RandomBatches*'
  settle
}

section_e2e() {
  local name
  for name in reference steps cached refusals regions lifecycle leak; do check "e2e_${name}_test" gtest "e2e_${name}_test" '*'; done
  settle
}

section_server() {
  local small=()
  [ "$device" != cpu ] || small=(--small --steps 60 --base 100003)
  check server_load script server_load.py --device "$device" --json "$out/server.json" "${small[@]}"
  settle
}

section_resident() {
  local small=()
  [ "$device" != cpu ] || small=(--base 100003 --threads 4)
  check resident script resident.py --device "$device" --json "$out/resident.json" "${small[@]}"
  check "damaged rows" finds resident.py --device "$device" --base 100003 --break
  settle
}
