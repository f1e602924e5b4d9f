# Images of Convoy. `tools/deploy/image cpu|cuda|dev` prepares build/image, the root of the first two,
# and builds one of them; tools/deploy/README.md says how to run it.
#   cpu   ./trainer-static and certificates, nothing else
#   cuda  ./trainer-static with CUDA kernels on a minimal glibc; the driver comes from the host
#   dev   all that the repository needs to be built and tested; mount it at /src
# Tried: cpu is built and run by tests/image.sh. cuda and dev were built on a Debian 12 that
# debootstrap made, and cuda was run with a trainer for CPUs. Not tried: the base images of a
# registry; a GPU.
ARG BASE=debian:bookworm-slim

FROM scratch AS cpu
COPY build/image/ /
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# The default run folder is runs/<time> here. build/image has /runs for any user to write.
WORKDIR /
VOLUME ["/data", "/runs"]
# Any other user will do.
USER 65532:65532
ENTRYPOINT ["/trainer"]
# A rank has no port before it has reached its coordinator: it counts as starting for --join-timeout.
HEALTHCHECK --interval=30s --timeout=3s --retries=3 --start-period=600s CMD ["/trainer", "health"]

FROM ${BASE} AS cuda
COPY build/image/ /
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /
VOLUME ["/data", "/runs"]
USER 65532:65532
ENTRYPOINT ["/trainer"]
HEALTHCHECK --interval=30s --timeout=3s --retries=3 --start-period=600s CMD ["/trainer", "health"]

FROM ${BASE} AS dev
COPY tools/deps.sh /usr/local/bin/convoy-deps
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends make git clang-format iproute2 \
    && convoy-deps && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory /src
ENV HOME=/tmp
WORKDIR /src
USER 65532:65532
