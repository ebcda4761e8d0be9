# Images with the programs, without compilers: the packages of tools/package.sh, installed.
#
#   docker build -t sparsellm .                     for NVIDIA GPUs; runs on the CPU, too
#   docker build -t sparsellm:cpu --target cpu .    for the CPU alone, and much smaller
#
# docs/build.md says how to run them. To build what is not the last stage takes BuildKit, Docker's
# default, which leaves out the stages that it does not need.

ARG CUDA=13.0.1
ARG DEBIAN=12
ARG UBUNTU=24.04

# What tools/package.sh builds from: neither tests nor a build folder.
FROM scratch AS source
COPY CMakeLists.txt CMakePresets.json LICENSE /
COPY configs /configs
COPY docs/example /docs/example
COPY engine /engine
COPY kernels /kernels
COPY models /models
COPY sparse /sparse
COPY tokenizer /tokenizer
COPY tools /tools

FROM debian:${DEBIAN} AS build-cpu
COPY --from=source / /SparseLLM
RUN /SparseLLM/tools/package.sh cpu

FROM debian:${DEBIAN} AS cpu
RUN --mount=type=bind,from=build-cpu,source=/SparseLLM/build/packages,target=/packages \
    apt-get update && \
    apt-get install -y --no-install-recommends /packages/sparsellm_*.deb && \
    rm -rf /var/lib/apt/lists/*
CMD ["sparsellm-run", "--help"]

FROM nvidia/cuda:${CUDA}-devel-ubuntu${UBUNTU} AS build-cuda
# One architecture alone builds faster: --build-arg ARCHITECTURES=90.
ARG ARCHITECTURES
COPY --from=source / /SparseLLM
RUN /SparseLLM/tools/package.sh cuda \
    ${ARCHITECTURES:+-DCMAKE_CUDA_ARCHITECTURES=${ARCHITECTURES}}

FROM nvidia/cuda:${CUDA}-runtime-ubuntu${UBUNTU} AS cuda
RUN --mount=type=bind,from=build-cuda,source=/SparseLLM/build/packages,target=/packages \
    apt-get update && \
    apt-get install -y --no-install-recommends /packages/sparsellm_*.deb && \
    rm -rf /var/lib/apt/lists/*
CMD ["sparsellm-run", "--help"]
