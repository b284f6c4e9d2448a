# syntax=docker/dockerfile:1
# @NAME@, made by scripts/generate_dockerfile.py; needs BuildKit

FROM @IMAGE@
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

ENV \
    HF_HOME="/cache/huggingface" \
    PYTHONUNBUFFERED="1" \
    PIP_BREAK_SYSTEM_PACKAGES="1"
# without dependencies, as verl's documents say: they are in the image
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/var/cache/pip \
    python3 -m pip install --cache-dir=/var/cache/pip --no-deps \
        @PINS@

RUN if getent passwd 1000; then userdel --remove "$(getent passwd 1000 | cut -d: -f1)"; fi \
    && if ! getent group 1000; then groupadd --gid 1000 trainer; fi \
    && useradd --create-home --uid 1000 --gid 1000 --shell /bin/bash trainer \
    && install --directory --owner=1000 --group=1000 /cache/huggingface /workspace
USER 1000:1000
WORKDIR /workspace

VOLUME ["/cache/huggingface"]
HEALTHCHECK --interval=5m --timeout=2m --start-period=2m --retries=3 \
    CMD ["python3", "-c", \
        "import torch; assert torch.__version__.split('+')[0] == '@TORCH@'; assert torch.ones(2).sum() == 2"]
LABEL \
    org.opencontainers.image.title="@NAME@" \
    org.opencontainers.image.description="RL post-training of language models: @PURPOSE@" \
    org.opencontainers.image.base.name="@IMAGE@"
CMD ["/bin/bash"]
