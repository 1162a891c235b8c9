#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs on a machine that has a GPU but neither this build nor its packages.
#   tests/gpu/bundle.sh BUILD_DIR
# Writes .bundle/pleiad.tar.xz: the binaries below, stripped, at their places in BUILD_DIR; the shared libraries they
# need, glibc's left out (and libcublasLt, which is opened by dlopen there); the protocol as a FileDescriptorSet.
# The checkout travels beside it. Exits 1 without pleiad-server or past 55 MiB; other binaries that are missing are named.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
[ -d "${1:-}" ] || { sed -n '2,6{s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
limit=$((55 * 1024 * 1024))

wanted=(server/pleiad-server client/cli/pleiad
  tests/core/device/device_test
  tests/core/engine/stage_test tests/core/engine/engine_test
  tests/e2e/e2e_reference_test tests/e2e/e2e_steps_test tests/e2e/e2e_refusals_test tests/e2e/e2e_cached_test
  tests/e2e/e2e_lifecycle_test)
# The tests and benchmarks of the CUDA home, wherever they lie.
for name in cuda_device_test cuda_stage_bench; do
  path=$(find "$build/tests" -type f -executable -name "$name" 2> /dev/null | head -n 1)
  wanted+=("${path:-$build/$name}")
done
while IFS= read -r path; do wanted+=("$path"); done < <(find "$build/tests" -type f -executable \
  \( -name '*cuda*_test' -o -name 'cuda*_bench' \) ! -name cuda_device_test ! -name cuda_stage_bench 2> /dev/null)
wanted=("${wanted[@]#"$build"/}")

tree=$root/.bundle/pack
rm -rf "$tree"
mkdir -p "$tree/build" "$tree/lib"

packed=() missing=()
for path in "${wanted[@]}"; do
  if [ -x "$build/$path" ]; then
    mkdir -p "$tree/build/$(dirname "$path")"
    strip -o "$tree/build/$path" "$build/$path"
    packed+=("$path")
  else
    missing+=("$path")
  fi
done
[ -x "$tree/build/server/pleiad-server" ] || { echo "bundle.sh: no server/pleiad-server in $build" >&2; exit 1; }

glibc='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libmvec|libnsl|libBrokenLocale|libcublas.*)\.so'
for path in "${packed[@]}"; do ldd "$build/$path"; done | sort -u > "$tree/ldd"
if grep 'not found' "$tree/ldd" >&2; then exit 1; fi
awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' "$tree/ldd" | sort -u | while read -r name file; do
  [[ $name =~ $glibc ]] || strip --strip-unneeded -o "$tree/lib/$name" "$(readlink -f "$file")"
done
rm "$tree/ldd"

protoc -I"$root/proto" --include_imports --descriptor_set_out="$tree/pleiad.protoset" pleiad/v1/ple.proto
{
  echo "source_dir=$root"
  echo "build_dir=$build"
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
