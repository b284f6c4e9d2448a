"""The Dockerfile."""

import json

from programs.generate_dockerfile.pins import ImagePlan
from programs.generate_dockerfile.stacks import IMAGES
from programs.generate_dockerfile.tables import APT_PINS, BUNDLE_FOLDERS, NANOCHAT_COMMIT, ROOT_HOME


def run_line(*commands: list[str], mounts: tuple[str, ...] = ()) -> list[str]:
    """A RUN instruction; the words of a command after its first stand on lines of their own."""
    lines = [f"RUN {mount}" if i == 0 else f"    {mount}" for i, mount in enumerate(mounts)]
    for position, (first, *words) in enumerate(commands):
        start = "RUN " if position == 0 and not mounts else "    " if position == 0 else "    && "
        lines += [f"{start}{first}", *(f"        {word}" for word in words)]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def pin_words(pins: dict[str, str]) -> list[str]:
    """Pins in double quotes, as a shell would else read `[` and `<`."""
    return [f'"{name}=={version}"' for name, version in pins.items()]


def pairs(values: dict[str, str]) -> list[str]:
    """NAME="value" lines of one instruction."""
    *lines, last = [f'    {name}="{value}"' for name, value in values.items()]
    return [*(f"{line} \\" for line in lines), last]


def uv_cache(plan: ImagePlan) -> tuple[str, ...]:
    """uv's cache, which outlives the build, owned by the user who fills it."""
    folder, owner = (f"/home/{plan.user}", f",uid={plan.uid},gid={plan.uid}") if plan.uid else (ROOT_HOME, "")
    return (f"--mount=type=cache,target={folder}/.cache/uv{owner}",)


def system_lines(plan: ImagePlan) -> list[str]:
    """Ubuntu's packages; the cache mounts keep what was fetched out of the image."""
    caches = ("/var/cache/apt", "/var/lib/apt/lists")
    packages = {name: v for name, v in APT_PINS.items() if name != "libnuma1" or plan.style in ("trl", "verl")}
    return run_line(
        ["rm -f /etc/apt/apt.conf.d/docker-clean"],
        ["apt-get update"],
        ["apt-get install --yes --no-install-recommends", *(f'"{n}={version}"' for n, version in packages.items())],
        mounts=tuple(f"--mount=type=cache,target={folder},sharing=locked" for folder in caches),
    )


def user_lines(plan: ImagePlan) -> list[str]:
    """An ordinary user who owns the folders to write to; Ubuntu 24.04's images have one of id 1000 already."""
    folders = ["/cache/huggingface", "/workspace"]
    if plan.choice.stack.base == "cuda":
        folders = ["/opt/python", "/opt/venv", *folders]
    if plan.style == "nanochat":
        folders += ["/cache/nanochat", "/opt/nanochat"]
    made = [f"install --directory --owner={plan.uid} --group={plan.uid} {' '.join(folders)}"]
    if not plan.uid:
        return run_line(made)
    uid = plan.uid
    return run_line(
        [f'if getent passwd {uid}; then userdel --remove "$(getent passwd {uid} | cut -d: -f1)"; fi'],
        [f"if ! getent group {uid}; then groupadd --gid {uid} {plan.user}; fi"],
        [f"useradd --create-home --uid {uid} --gid {uid} --shell /bin/bash {plan.user}"],
        made,
    )


def environment_lines(plan: ImagePlan) -> list[str]:
    """Environment variables; none is a secret."""
    values = {"HF_HOME": "/cache/huggingface", "PYTHONUNBUFFERED": "1"}
    if plan.choice.stack.base == "image":
        values |= {"PIP_BREAK_SYSTEM_PACKAGES": "1"}
    else:
        values |= {"VIRTUAL_ENV": "/opt/venv", "PATH": "/opt/venv/bin:$PATH", "UV_PYTHON_INSTALL_DIR": "/opt/python"}
        values |= {"UV_LINK_MODE": "copy", "UV_HTTP_TIMEOUT": "300"}
    if plan.style == "nanochat":
        values |= {"UV_PROJECT_ENVIRONMENT": "/opt/venv", "NANOCHAT_BASE_DIR": "/cache/nanochat"}
        values |= {"OMP_NUM_THREADS": "1"}
    return ["ENV \\", *pairs(values)]


def package_lines(plan: ImagePlan) -> list[str]:
    """torch first, as the largest and least often changed; then the rest, then what compiles, then the extras.

    Each layer names torch again, so that none can replace it.
    """
    mounts = uv_cache(plan)
    torch = {"torch": plan.torch}
    rest = {name: version for name, version in plan.pins.items() if name != "torch"}
    index = f" --index-url {plan.wheel_index}" if plan.wheel_index else ""
    lines = [
        *run_line(
            [f"uv venv --seed --allow-existing --python {plan.choice.python} /opt/venv"],
            [f"uv pip install{index}", *pin_words(torch)],
            mounts=mounts,
        ),
        *run_line(["uv pip install", *pin_words({**torch, **rest})], ["uv pip check"], mounts=mounts),
    ]
    if plan.source_pins:
        lines += ["# compiles for minutes to hours; lower MAX_JOBS where memory runs out", "ARG MAX_JOBS=8"]
        lines += run_line(
            ["uv pip install", *pin_words({**torch, **plan.build_pins})],
            ["uv pip install --no-build-isolation", *pin_words({**torch, **plan.source_pins})],
            ["uv pip check"],
            mounts=mounts,
        )
    if plan.extras:
        lines += run_line(["uv pip install", *pin_words({**torch, **plan.extras})], ["uv pip check"], mounts=mounts)
    return lines


def image_package_lines(plan: ImagePlan) -> list[str]:
    """What verl's own image lacks; without dependencies, as its documents say: they are in the image."""
    steps = [["python3 -m pip install --no-deps", *pin_words(plan.pins)]]
    if plan.extras:
        held = {"torch": plan.torch, **plan.pins}
        steps.append(["python3 -m pip install", *pin_words({**held, **plan.extras})])
    return run_line(*steps, mounts=(f"--mount=type=cache,target={ROOT_HOME}/.cache/pip",))


def nanochat_lines(plan: ImagePlan) -> list[str]:
    """nanochat at its commit, and what its lock file names."""
    mounts = uv_cache(plan)
    extra = "cpu" if plan.choice.cuda == "cpu" else "gpu"
    lines = [
        "WORKDIR /opt/nanochat",
        *run_line(
            ["git init --quiet ."],
            [f"git fetch --quiet --depth 1 https://github.com/karpathy/nanochat.git {NANOCHAT_COMMIT}"],
            ["git checkout --quiet FETCH_HEAD"],
        ),
        *run_line(
            [f"uv venv --allow-existing --python {plan.choice.python} /opt/venv"],
            [f"uv sync --frozen --extra {extra} --python /opt/venv/bin/python"],
            mounts=mounts,
        ),
    ]
    if plan.extras:
        extras = pin_words({"torch": plan.torch, **plan.extras})
        lines += run_line(["uv pip install", *extras], ["uv pip check"], mounts=mounts)
    return lines


def health_command(plan: ImagePlan) -> list[str]:
    """Import torch, see that it is the pinned one, and use it."""
    code = f"import torch; assert torch.__version__.split('+')[0] == '{plan.torch}'; assert torch.ones(2).sum() == 2"
    return ["python3" if plan.choice.stack.base == "image" else "python", "-c", code]


def label_lines(plan: ImagePlan) -> list[str]:
    """Labels; last, as changing one would rebuild what follows it."""
    facts = {name: value for name, value in plan.choice.facts.items() if name not in ("flash_attn", "megatron")}
    facts |= {"flash_attn": plan.flash_attn, "megatron": plan.choice.facts["megatron"] if plan.megatron else ""}
    labels = {
        "org.opencontainers.image.title": plan.name,
        "org.opencontainers.image.description": f"RL post-training of language models: {plan.style}",
        "org.opencontainers.image.base.name": plan.image,
        **{f"rl-training-code.{name}": value for name, value in facts.items() if value},
    }
    return ["LABEL \\", *pairs(labels)]


def bundle_lines(plan: ImagePlan) -> list[str]:
    """This bundle's files, which change more often than any package."""
    owner = f"--chown={plan.uid}:{plan.uid} " if plan.uid else ""
    return [f"COPY {owner}{folder} /opt/rl-training-code/{folder}" for folder in BUNDLE_FOLDERS]


def dockerfile(plan: ImagePlan) -> str:
    """The text of the Dockerfile."""
    is_image = plan.choice.stack.base == "image"
    uv = next(row.tag for row in IMAGES if row.use == "uv")
    user = [f"USER {plan.uid}:{plan.uid}"] if plan.uid else []
    lines = ["# syntax=docker/dockerfile:1", f"# {plan.name}, made by scripts/generate_dockerfile.py; needs BuildKit"]
    lines += [f"# {plan.choice.stack.note}"] if plan.choice.stack.note else []
    if is_image:
        lines += ["", f"FROM {plan.image}", 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]', ""]
        lines += [*environment_lines(plan), *image_package_lines(plan), *user_lines(plan), *user]
    else:
        lines += ["", f"FROM {uv} AS uv", "", f"FROM {plan.image}", 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]']
        lines += ["ARG DEBIAN_FRONTEND=noninteractive", "", *system_lines(plan), "", *user_lines(plan), ""]
        lines += ["COPY --from=uv /uv /uvx /usr/local/bin/", *environment_lines(plan), *user, ""]
        lines += nanochat_lines(plan) if plan.style == "nanochat" else package_lines(plan)
    lines += ["", *bundle_lines(plan)] if plan.style == "base" else []
    lines += [] if plan.style == "nanochat" else ["WORKDIR /workspace"]
    volumes = ["/cache/huggingface", *(["/cache/nanochat"] if plan.style == "nanochat" else [])]
    check = "HEALTHCHECK --interval=5m --timeout=2m --start-period=2m --retries=3 \\"
    lines += ["", f"VOLUME {json.dumps(volumes)}", check, f"    CMD {json.dumps(health_command(plan))}"]
    return "\n".join([*lines, *label_lines(plan), 'CMD ["/bin/bash"]', ""])
