# pleiad-server and pleiad on Debian 12, without root. For Docker, Podman or Buildah (--format docker keeps the health check):
#   docker build --target cpu -t pleiad:cpu .
#   docker build --target cuda -t pleiad:cuda .
#   docker run --stop-timeout 150 --security-opt seccomp=deploy/seccomp.json --ulimit memlock=67108864 -p 50051:50051 -p 9464:9464 \
#     -v /srv/model:/srv/pleiad/model:ro pleiad:cpu --listen 0.0.0.0:50051 --allow-plaintext --metrics-listen 0.0.0.0:9464
# The profile allows io_uring, which the runtimes' own refuse, and io_uring locks 1 MiB of memory. Without either, rows are
# read all the same, by pread or a little slower. A Unix socket in a shared folder serves engines on the same host.
ARG DEBIAN=docker.io/library/debian:bookworm-slim

# What both builds start from.
FROM ${DEBIAN} AS source
WORKDIR /src
COPY deploy/install-deps.sh deploy/install-deps.sh
RUN apt-get update && bash deploy/install-deps.sh --build && rm -rf /var/lib/apt/lists/*
COPY . .

FROM source AS build
RUN cmake --preset release -DPLEIAD_TESTS=OFF -DPLEIAD_CUDA=OFF \
    && cmake --build build/release --target pleiad-server pleiad \
    && install -D -s -t /usr/bin build/release/server/pleiad-server build/release/client/cli/pleiad

# NVIDIA's packages for Debian 12, as NVIDIA signs them.
FROM source AS build-cuda
ADD https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb /tmp/keyring.deb
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && dpkg -i /tmp/keyring.deb \
    && apt-get update && apt-get install -y --no-install-recommends \
         cuda-nvcc-13-0 cuda-cudart-dev-13-0 cuda-cccl-13-0 cuda-nvtx-13-0 libcublas-dev-13-0 \
    && rm -rf /var/lib/apt/lists/* /tmp/keyring.deb
ENV PATH=/usr/local/cuda-13.0/bin:$PATH
RUN cmake --preset release -DPLEIAD_TESTS=OFF -DPLEIAD_CUDA=ON \
    && cmake --build build/release --target pleiad-server pleiad \
    && install -D -s -t /usr/bin build/release/server/pleiad-server build/release/client/cli/pleiad

FROM ${DEBIAN} AS runtime
RUN apt-get update && apt-get install -y --no-install-recommends \
      libgrpc++1.51 libprotobuf32 libabsl20220623 libdnnl2 liburing2 libprometheus-cpp-pull1.0 libspdlog1.10 libfmt9 \
      libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 pleiad && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin pleiad \
    && install -d -o pleiad -g pleiad -m 0700 /var/lib/pleiad && install -d -o pleiad -g pleiad /run/pleiad
ENV PLEIAD_MODEL=/srv/pleiad/model
EXPOSE 50051 9464
USER 10001:10001
# Ready to serve; a listener elsewhere than 127.0.0.1:50051 is named by PLEIAD_SERVER.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["/usr/bin/pleiad", "health", "--timeout", "4s"]
ENTRYPOINT ["/usr/bin/pleiad-server"]

FROM runtime AS cuda
USER 0:0
ADD https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb /tmp/keyring.deb
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && dpkg -i /tmp/keyring.deb \
    && apt-get update && apt-get install -y --no-install-recommends libcublas-13-0 \
    && rm -rf /var/lib/apt/lists/* /tmp/keyring.deb
# What the container toolkit brings in: the driver, for computing.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility PLEIAD_DEVICE=cuda
COPY --from=build-cuda /usr/bin/pleiad-server /usr/bin/pleiad /usr/bin/
USER 10001:10001

FROM runtime AS cpu
ENV PLEIAD_DEVICE=cpu
COPY --from=build /usr/bin/pleiad-server /usr/bin/pleiad /usr/bin/
