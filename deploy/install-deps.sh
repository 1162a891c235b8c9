#!/usr/bin/env bash
# Installs the Debian 12 packages that Pleiad needs. Packages already there are skipped.
#   deploy/install-deps.sh [--build] [--test]
#     --build   to compile and run the server and the client
#     --test    to run the tests: GoogleTest, Clang with its sanitizers, Python's gRPC, Node.js, and what runs a cluster
# The CUDA toolkit is not among them: its nvcc is NVIDIA's to install, and the CUDA device is built where it is found.
# Without a set: both. Not root: prints the line to run and exits 1.
set -euo pipefail

build_set=(
  g++ cmake ninja-build pkg-config
  libgrpc++-dev libgrpc-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev
  libssl-dev # gRPC's CMake file asks for OpenSSL
  libdnnl-dev ocl-icd-opencl-dev # oneDNN's CMake file asks for OpenCL
  liburing-dev prometheus-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev zlib1g-dev
)
test_set=(
  libgtest-dev libgmock-dev libbenchmark-dev
  clang libclang-rt-14-dev llvm lld clang-tidy
  openssl # makes the certificates of tests
  python3 python3-grpcio python3-protobuf python3-numpy python3-yaml
  prometheus haproxy systemd python3-seccomp buildah debootstrap # deploy/ is tested with the programs that it configures
)
# Renders the Kubernetes manifests; it often comes from elsewhere than Debian.
command -v kubectl > /dev/null || test_set+=(kubernetes-client)
# Node.js often comes from elsewhere than Debian; npm comes with it then.
command -v node > /dev/null || test_set+=(nodejs)
command -v npm > /dev/null || test_set+=(npm)

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; }

wanted=()
for arg in "$@"; do
  case "$arg" in
    --build) wanted+=("${build_set[@]}") ;;
    --test) wanted+=("${test_set[@]}") ;;
    -h | --help) usage; exit 0 ;;
    *) echo "install-deps.sh: unknown argument '$arg'" >&2; usage >&2; exit 2 ;;
  esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${build_set[@]}" "${test_set[@]}")

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  echo "install-deps.sh: this system has no apt. Pleiad wants Debian 12 and: ${wanted[*]}" >&2
  exit 1
fi

installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2> /dev/null || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF "$package installed" <<< "$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "all ${#wanted[@]} packages are installed"
  exit 0
fi

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if [ "$(id -u)" -ne 0 ]; then
  echo "${#missing[@]} packages are missing. As root, run:" >&2
  echo "  apt-get update && ${install[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "installing ${#missing[@]} packages: ${missing[*]}"
# Package lists may be old or absent: they are fetched when the first try fails.
"${install[@]}" || { apt-get update && "${install[@]}"; }
