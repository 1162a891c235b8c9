#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs on a machine that has a GPU but neither this build nor its packages.
#   tests/gpu/bundle.sh BUILD_DIR [BUILD_DIR...]
# Writes .bundle/pleiad.tar.xz: the binaries below, stripped, each from the first BUILD_DIR that has it; the shared
# libraries they need, glibc's left out (and libcublasLt, which is opened by dlopen there); the protocol as a
# FileDescriptorSet. The checkout travels beside it. Exits 1 without pleiad-server or past 55 MiB; other binaries that
# are missing are named.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
[ -d "${1:-}" ] || { sed -n '2,7{s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
builds=()
for folder in "$@"; do builds+=("$(cd "$folder" && pwd)"); done
limit=$((55 * 1024 * 1024))
rm -f .bundle/pleiad.tar.xz

wanted=(server/pleiad-server client/cli/pleiad
  tests/core/device/device_test
  tests/core/engine/stage_test tests/core/engine/engine_test
  tests/e2e/e2e_reference_test tests/e2e/e2e_steps_test tests/e2e/e2e_refusals_test tests/e2e/e2e_cached_test
  tests/e2e/e2e_regions_test tests/e2e/e2e_lifecycle_test tests/e2e/e2e_leak_test tests/support/process/abandoning_client tests/core/device/cuda_device_test tests/bench/cuda_stage_bench
  tests/core/device/cuda_ipc_test tests/bench/cuda_ipc_bench
  tests/bench/wire_bench tests/bench/pleiad-bench-server)
# Others of the CUDA home.
while IFS= read -r path; do
  [[ " ${wanted[*]} " == *" $path "* ]] || wanted+=("$path")
done < <(for build in "${builds[@]}"; do
  (cd "$build" && find tests -type f -executable \( -name '*cuda*_test' -o -name 'cuda*_bench' \) 2> /dev/null)
done | sort -u)

tree=$root/.bundle/pack
rm -rf "$tree"
mkdir -p "$tree/build" "$tree/lib"

packed=() missing=()
for path in "${wanted[@]}"; do
  from=
  for build in "${builds[@]}"; do [ -n "$from" ] || [ ! -x "$build/$path" ] || from=$build; done
  [ -n "$from" ] || { missing+=("$path"); continue; }
  mkdir -p "$tree/build/$(dirname "$path")"
  strip -o "$tree/build/$path" "$from/$path"
  packed+=("$path $(date -r "$from/$path" +%H:%M) of ${from#"$root"/}")
  ldd "$from/$path"
done > "$tree/ldd"
[ -x "$tree/build/server/pleiad-server" ] || { echo "bundle.sh: no server/pleiad-server in $*" >&2; exit 1; }

glibc='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libmvec|libnsl|libBrokenLocale|libcublas.*)\.so'
if grep 'not found' "$tree/ldd" >&2; then exit 1; fi
awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' "$tree/ldd" | sort -u | while read -r name file; do
  [[ $name =~ $glibc ]] || strip --strip-unneeded -o "$tree/lib/$name" "$(readlink -f "$file")"
done
rm "$tree/ldd"

protoc -I"$root/proto" --include_imports --descriptor_set_out="$tree/pleiad.protoset" pleiad/v1/ple.proto
{
  echo "source_dir=$root"
  echo "build_dirs='${builds[*]}'"
  echo "commit=$(git rev-parse --short HEAD 2> /dev/null || echo unknown)"
  echo "built=$(date -u +%Y-%m-%dT%H:%MZ)"
} > "$tree/BUNDLE"

tar -C "$tree" --sort=name --owner=0 --group=0 -cf - . | xz -T0 -6 > .bundle/pleiad.tar.xz.part
mv .bundle/pleiad.tar.xz.part .bundle/pleiad.tar.xz
size=$(stat -c %s .bundle/pleiad.tar.xz)
printf 'packed %s\n' "${packed[@]}"
[ ${#missing[@]} -eq 0 ] || printf 'missing %s\n' "${missing[@]}"
echo "$(find "$tree/lib" -type f | wc -l) libraries; .bundle/pleiad.tar.xz $((size / 1024)) KiB"
rm -rf "$tree"
[ "$size" -lt "$limit" ] || { echo "bundle.sh: .bundle/pleiad.tar.xz has $size bytes, more than $limit" >&2; exit 1; }
