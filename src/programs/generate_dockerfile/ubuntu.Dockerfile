# syntax=docker/dockerfile:1
# @NAME@, made by scripts/generate_dockerfile.py; needs BuildKit

FROM @UV@ AS uv

FROM @IMAGE@
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG DEBIAN_FRONTEND=noninteractive

# Ubuntu 24.04 keeps these versions for its whole life, but for security fixes
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean \
    && apt-get update \
    && apt-get install --yes --no-install-recommends \
        "build-essential=12.10*" \
        "ca-certificates=20*" \
        "git=1:2.43.*"@SYSTEM@

RUN if getent passwd 1000; then userdel --remove "$(getent passwd 1000 | cut -d: -f1)"; fi \
    && if ! getent group 1000; then groupadd --gid 1000 trainer; fi \
    && useradd --create-home --uid 1000 --gid 1000 --shell /bin/bash trainer \
    && install --directory --owner=1000 --group=1000 \
        /opt/python /opt/venv /workspace /cache/huggingface

COPY --from=uv /uv /uvx /usr/local/bin/
ENV \
    HF_HOME="/cache/huggingface" \
    PYTHONUNBUFFERED="1" \
    VIRTUAL_ENV="/opt/venv" \
    PATH="/opt/venv/bin:$PATH" \
    UV_PYTHON_INSTALL_DIR="/opt/python" \
    UV_LINK_MODE="copy" \
    UV_HTTP_TIMEOUT="300"
USER 1000:1000

# torch first, as the largest and least often changed; each layer names it again, so that none can replace it
RUN --mount=type=cache,target=/home/trainer/.cache/uv,uid=1000,gid=1000 \
    uv venv --seed --allow-existing --python 3.12 /opt/venv \
    && uv pip install@INDEX@ "torch==@TORCH@"
RUN --mount=type=cache,target=/home/trainer/.cache/uv,uid=1000,gid=1000 \
    uv pip install \
        "torch==@TORCH@" \
        @PINS@ \
    && uv pip check

@COPIES@WORKDIR /workspace

VOLUME ["/cache/huggingface"]
HEALTHCHECK --interval=5m --timeout=2m --start-period=2m --retries=3 \
    CMD ["python", "-c", \
        "import torch; assert torch.__version__.split('+')[0] == '@TORCH@'; assert torch.ones(2).sum() == 2"]
LABEL \
    org.opencontainers.image.title="@NAME@" \
    org.opencontainers.image.description="RL post-training of language models: @PURPOSE@" \
    org.opencontainers.image.base.name="@IMAGE@"
CMD ["/bin/bash"]
