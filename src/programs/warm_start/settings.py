"""Settings of the warm start, and contradictions between them."""

import os
from dataclasses import dataclass
from pathlib import Path

from parts.data.rows import is_hub_id
from parts.foundation.messages import need
from parts.foundation.processes import device_name
from parts.foundation.settings import check_values, in_order, parse_settings, setting
from parts.learning.idle_settings import say_idle
from parts.learning.optimizer import default_learning_rate
from parts.learning.trainer_settings import RunSettings
from parts.rewards.text_servers import is_server

PASS_HIGH = 0.9  # pass rate above which RL has little left to learn


@in_order(
    completion_column="prompt_column",
    device="precision",
    gradient_checkpointing="attn_implementation",
    save_every="lora_alpha",
)
@dataclass
class Config(RunSettings):
    """All settings and their defaults: those of RunSettings and these; each is a flag and a key of --config."""

    # model and data
    completion_column: str = setting("completion", "column with the solutions, without --self and --teacher")
    output_dir: str = setting("runs/warm", "folder for samples, rounds and final/", free=True)
    # where solutions come from
    self: bool = setting(False, "train on the model's own samples that pass", section="where solutions come from")
    teacher: str = setting("", "train on samples of this model: folder, hub id, or http://HOST:PORT/v1[#MODEL]")
    samples: int = setting(16, "completions sampled per prompt, with --self or --teacher", positive=True)
    sample_temperature: float = setting(
        1.0, "their sampling temperature; a higher one finds rare solutions", positive=True
    )
    prompts_per_round: int = setting(256, "prompts sampled in a round; rounds continue through the data", positive=True)
    max_draws: int = setting(4, "times that a round may draw prompts_per_round prompts", positive=True, free=True)
    # when RL can take over
    rounds: int = setting(
        5, "limit on rounds of solutions and training", positive=True, free=True, section="when RL can take over"
    )
    min_rounds: int = setting(0, "fewest rounds, even if the model is within the bounds earlier", free=True)
    pass_low: float = setting(0.1, "lowest held-out pass rate at which RL can begin")
    pass_score: float = setting(1.0, "lowest score of the first reward with which a completion passes", positive=True)
    hold_out: int = setting(0, "rows of --data to hold out for the measure, instead of --eval_data; whole prompts")
    eval_prompts: int = setting(64, "held-out prompts to sample (0: all)")
    eval_samples: int = setting(16, "completions of each held-out prompt", positive=True)
    group_size: int = setting(8, "completions per prompt in the RL run", positive=True)
    # sampling
    max_prompt_tokens: int = setting(512, "longer prompts are left out, and counted", positive=True, section="sampling")
    max_new_tokens: int = setting(256, "longest completion, as in the RL run", positive=True)
    temperature: float = setting(1.0, "temperature of the RL run, at which the pass rate is measured", positive=True)
    rollout_engine: str = setting("hf", "sampling engine", ["hf", "vllm"])
    rollout_batch_size: int = setting(128, "sequences sampled at once, and written to disk together", positive=True)
    vllm_memory: float = setting(0.3, "share of GPU memory that vLLM may take", free=True)
    check_sync: int = setting(1, "rounds between comparisons of vLLM's weights with the policy's (0: never)", free=True)
    # training
    epochs: float = setting(2.0, "passes over the solutions in a round", positive=True, section="training")
    batch_size: int = setting(16, "solutions per optimizer step", positive=True)
    micro_batch_size: int = setting(0, "solutions in a forward pass (0: all below 50M parameters, else 1)", free=True)
    lr: float = setting(0.0, "learning rate (0: 1e-3 below 50M parameters, 1e-4 with LoRA, else 1e-5)")
    lr_schedule: str = setting("linear", "shape of the learning rate in a round", ["constant", "linear", "cosine"])
    warmup_steps: int = setting(0, "steps of a round over which the learning rate rises")
    device: str = setting("auto", "auto: a CUDA GPU, else the CPU", ["auto", "cpu", "cuda"], free=True)
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass", free=True)
    save_every: int = setting(
        100, "optimizer steps between checkpoints within a round (0: none)", free=True, section="checkpoints"
    )
    resume: bool = setting(False, "continue from what was sampled and trained in output_dir", free=True)

    # what the parts read and this program does not offer
    load_in_4bit = False
    logits_chunk = 2**26
    merge_lora = True
    save_dtype = "checkpoint"
    environment = ""

    @property
    def samples_solutions(self_) -> bool:
        """Whether solutions are sampled; `self` is a setting here."""
        return bool(self_.self or self_.teacher)


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)


def check_warm_start(config: Config) -> None:
    """Raise UserError for settings that are out of range or cannot work together."""
    c, usual = config, type(config)()
    check_values(c, "model", "data", "output_dir", "prompt_column", "completion_column")
    need(not (c.self and c.teacher), "got --self and --teacher; expected one of them; try --teacher alone")
    of_samples = ("samples", "sample_temperature", "prompts_per_round", "max_draws")
    unused = ("completion_column",) if c.samples_solutions else of_samples
    idle = ", ".join(f"--{name}" for name in unused if getattr(c, name) != getattr(usual, name))
    where = "with" if c.samples_solutions else "without"
    need(not idle, f"got {idle} {where} --self or --teacher, where they have no effect; try leaving them out")
    need(c.pass_low <= PASS_HIGH, f"got pass_low {c.pass_low}; expected at most {PASS_HIGH}; try --pass_low 0.3")
    need(c.min_rounds <= c.rounds, f"got min_rounds {c.min_rounds} above rounds; try --rounds {c.min_rounds}")
    micro = c.micro_batch_size or c.batch_size
    need(c.batch_size % micro == 0, f"got micro_batch_size {micro}; expected a divisor of batch_size {c.batch_size}")
    vllm = c.rollout_engine == "vllm"
    need(vllm or not c.vllm_args, f"got --vllm_args with rollout_engine {c.rollout_engine}; try --rollout_engine vllm")
    local = c.teacher and not is_server(c.teacher)
    known = not local or Path(c.teacher).is_dir() or is_hub_id(c.teacher)
    need(known, f"got teacher {c.teacher!r}; expected a folder, a hub id, or http://HOST:PORT/v1; try its whole path")
    need(not (vllm and local), "got --teacher with vllm, whose engine holds one model; try --rollout_engine hf")
    many = int(os.environ.get("WORLD_SIZE", "1"))
    need(many == 1, f"got {many} processes; expected one; try without torchrun")
    slow = c.precision == "fp16" and device_name(c) == "cpu"
    need(
        not slow, "got --precision fp16 on a CPU, where TRL trains in fp32; expected bf16 or fp32; try --precision bf16"
    )
    say_idle(config, updates=2)


def settled_training(config: Config, parameters: int) -> tuple[float, int]:
    """Learning rate and rows of a forward pass, by model size where the setting is 0."""
    lr = config.lr or default_learning_rate("student", parameters, bool(config.lora_rank))
    return lr, config.micro_batch_size or (config.batch_size if parameters < 50e6 else 1)
