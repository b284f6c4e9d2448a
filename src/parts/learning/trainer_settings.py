"""Settings that several trainers have, with their defaults: a trainer's Config adds its own."""

from dataclasses import dataclass

from parts.foundation.bundle import EMBEDDED_DATA, EMBEDDED_MODEL
from parts.foundation.messages import need
from parts.foundation.settings import BaseConfig, in_order, setting
from parts.learning.presets import GROUP_DEFAULTS, PRESETS
from parts.networks.loading import ATTENTION_KINDS


@dataclass
class RunSettings(BaseConfig):
    """What all trainers have."""

    # model and data
    model: str = setting(EMBEDDED_MODEL, "model folder or hub id", section="model and data")
    data: str = setting(EMBEDDED_DATA, "training prompts: JSONL, JSON, CSV or parquet file, or hub id[:config][@split]")
    eval_data: str = setting("", "held-out prompts, same formats (default: those of the embedded task with its data)")
    prompt_column: str = setting("prompt", "column that holds the prompt, a string or chat messages")
    chat: bool = setting(False, "send string prompts as a user's turn through the chat template")
    chat_template: str = setting("", "FILE with a chat template to use instead of the tokenizer's")
    chat_template_kwargs: str = setting("", 'JSON object for the chat template, such as {"enable_thinking": false}')
    reward: list[str] = setting(
        [], "FILE.py:function[*weight] or a library's name, repeatable (default: the embedded data's)"
    )
    reward_timeout: float = setting(600.0, "seconds for one call of an async reward (0: no limit)", free=True)
    reward_concurrency: int = setting(32, "calls of async rewards at once, in each process", positive=True, free=True)
    reward_retries: int = setting(2, "retries after a lost connection, a timeout, HTTP 408, 425, 429, 5xx", free=True)
    output_dir: str = setting("runs/ppo", "folder for logs, checkpoints and final/", free=True)
    seed: int = setting(0, "seed of data order, sampling, minibatches and new adapters")
    # rollout
    temperature: float = setting(1.0, "sampling temperature; it divides the logits of all log-probs", positive=True)
    vllm_args: list[str] = setting([], "key=value …: any other argument of vLLM's engine", free=True, several=True)
    check_sync: int = setting(50, "steps between checks of vLLM's weights, besides the first two (0: none)", free=True)
    # optimization
    warmup_steps: int = setting(0, "steps over which the learning rates rise")
    weight_decay: float = setting(0.0, "AdamW weight decay")
    max_grad_norm: float = setting(1.0, "gradient clipping, of each network", positive=True)
    # precision and memory
    precision: str = setting(
        "auto",
        "compute precision; auto: bf16 if the CUDA GPU supports it, else fp32; trained weights stay fp32",
        ["auto", "fp32", "bf16", "fp16"],
        section="precision and memory",
    )
    attn_implementation: str = setting(
        "auto", "transformers' attention implementation; auto: its own choice", lambda: list(ATTENTION_KINDS), free=True
    )
    lora_rank: int = setting(0, "train new LoRA adapters of this rank on all linear layers (0: none)")
    lora_alpha: float = setting(0.0, "LoRA scale (0: twice the rank)")
    threads: str = setting("auto", "CPU threads: a number, or auto (fewer if other processes use the cores)", free=True)
    # logs and checkpoints
    resume: bool = setting(False, "continue from the newest checkpoint in output_dir", free=True)
    dry_run: bool = setting(False, "print the batch, memory needed and free, and changed settings; stop", free=True)


@dataclass
class ConversationSettings(BaseConfig):
    """Settings of programs that hold conversations with an environment."""

    environment: str = setting(
        "", "FILE.py:Class of a multi-turn environment: its methods are tools, or it replies; also a dict {name: class}"
    )
    max_turns: int = setting(8, "answers in a conversation with an environment", positive=True)
    max_conversation_tokens: int = setting(
        0, "token limit of a conversation (0: the limit of a prompt + max_turns x that of an answer)"
    )
    tool_timeout: float = setting(30.0, "seconds for an answer's tool calls, or for a reply", positive=True, free=True)
    tool_characters: int = setting(8000, "length at which tool results are cut, in characters", positive=True)
    tool_format: str = setting(
        "",
        "form of tool calls: hermes, qwen_xml, mistral, pythonic, llama3_json, or template for the "
        "tokenizer's response_template (default: what the chat template shows)",
    )

    @property
    def conversation_tokens(self) -> int:
        """Maximum number of tokens of a prompt and all that follows it."""
        turns = self.max_turns if self.environment else 1
        return self.max_conversation_tokens or self.max_prompt_tokens + turns * self.max_new_tokens


@in_order(steps="seed", entropy_coef="check_sync", load_in_4bit="lora_alpha")
@dataclass
class TrainerSettings(RunSettings):
    """What trainers by RL and distillation have, TRL's too."""

    # rollout
    steps: int = setting(
        100, "training steps; each is one rollout and one update", positive=True, free=True, section="rollout"
    )
    # algorithm: details of advantages and losses
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    # precision and memory
    load_in_4bit: bool = setting(False, "4-bit base weights under LoRA (needs bitsandbytes)")
    # logs and checkpoints
    report_to: list[str] = setting(
        [], "wandb, tensorboard or trackio, repeatable, beside metrics.jsonl", free=True, section="logs and checkpoints"
    )
    metrics_file: str = setting("", "a second log: one JSON object per update, none for evaluations", free=True)
    metric_names: str = setting(
        "", "metrics of --metrics_file, under your names: reward=reward/mean,policy_loss=policy/loss", free=True
    )
    sample_every: int = setting(10, "steps between entries in samples.jsonl (0: never)", free=True)
    plot_every: int = setting(25, "steps between refreshes of curves.png (0: only at the end)", free=True)
    eval_every: int = setting(25, "steps between held-out evaluations (0: only before and after)", free=True)
    hold_out: int = setting(0, "rows of --data to hold out for evaluation, instead of --eval_data; whole prompts")
    eval_rows: int = setting(512, "held-out prompts in each evaluation, always the same ones (0: all)")
    allow_overlap: bool = setting(False, "evaluate even if every held-out prompt is also trained on", free=True)
    stop_when: str = setting(
        "never",
        "broken: save and stop if diagnose.py calls the run broken at step 3, 10, 30 …",
        ["never", "broken"],
        free=True,
    )


@in_order(
    max_prompt_tokens="steps",
    rollout_engine="temperature",
    norm_length="check_sync",
    mismatch="entropy_coef",
    adam_beta2="weight_decay",
    max_bad_updates="max_grad_norm",
    device="precision",
    micro_batch_tokens="attn_implementation",
    merge_lora="lora_alpha",
    save_every="stop_when",
)
@dataclass
class RolloutSettings(TrainerSettings):
    """What trainers with this bundle's step have."""

    # rollout
    max_prompt_tokens: int = setting(512, "longer prompts are left out, and counted", positive=True)
    max_new_tokens: int = setting(256, "longest completion", positive=True)
    rollout_engine: str = setting("hf", "engine that samples", ["hf", "vllm"])
    rollout_batch_size: int = setting(0, "sequences sampled at once per process", free=True, auto=True)
    decode_graphs: bool = setting(
        True, "on a CUDA GPU hf records the kernels of a token as a CUDA graph and replays them", free=True
    )
    vllm_memory: float = setting(0.3, "share of GPU memory that vLLM may take", free=True)
    # algorithm: choices
    norm_length: int = setting(0, "constant by which aggregation fixed_length divides a sequence's sum, in tokens")
    # algorithm: sampler and trainer that disagree
    mismatch: str = setting(
        "auto",
        "loss weights w = trainer/sampler probability; tis: per token, at most mismatch_high; icepop: per token, 0 "
        "outside the bounds; seq_mask: per sequence, 0 outside; auto: tis with vllm, else none",
        ["auto", "none", "tis", "icepop", "seq_mask"],
    )
    mismatch_low: float = setting(0.5, "lower bound of w")
    mismatch_high: float = setting(2.0, "upper bound of w", positive=True)
    # optimization
    lr: float = setting(
        0.0, "policy learning rate (0: 2e-4 below 50M parameters, 1e-5 with LoRA, else 1e-6)", section="optimization"
    )
    lr_schedule: str = setting("constant", "shape after warm-up, down to 0", ["constant", "linear", "cosine"])
    adam_beta2: float = setting(0.999, "AdamW: decay of the mean of squared gradients")
    adam_eps: float = setting(
        1e-8, "AdamW: added to the root of that mean; matters if gradients are tiny", positive=True
    )
    max_bad_updates: int = setting(5, "stop after this many non-finite updates in a row", positive=True, free=True)
    # precision and memory
    device: str = setting("auto", "auto (a CUDA GPU, else the CPU), cpu, cuda, cuda:N, or mps (untested)", free=True)
    micro_batch_tokens: int = setting(
        8192,
        "tokens per forward and backward pass, pads included; with share_prompts: tokens run + 1/8 of rows x columns",
        positive=True,
        free=True,
        auto=True,
    )
    share_prompts: bool = setting(
        True, "save time: run a group's prompt once and no padding; hf also stores the prompt once", free=True
    )
    logits_chunk: int = setting(
        2**26, "logits (tokens x vocabulary) that exist at once", positive=True, free=True, auto=True
    )
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass", free=True)
    merge_lora: bool = setting(False, "merge the adapters into final/", free=True)
    save_dtype: str = setting(
        "checkpoint", "dtype of final/: --model's (bf16 loses small changes) or fp32", ["checkpoint", "fp32"], free=True
    )
    # logs and checkpoints
    save_every: int = setting(25, "steps between checkpoints (0: only when stopped)", free=True)
    keep_checkpoints: int = setting(2, "newest checkpoints to keep", positive=True, free=True)


@in_order(
    environment="reward_retries",
    batch_size="steps",
    algorithm="check_sync",
    ppo_epochs="norm_length",
    target_kl="entropy_coef",
    critic="mismatch_high",
    critic_lr="lr",
)
@dataclass
class PolicySettings(RolloutSettings, ConversationSettings):
    """What the PPO trainer and the launcher of verl have.

    A field left at None takes the value that PRESETS gives it for `algorithm`.
    """

    # model and data
    turn_baseline: str = setting(
        "conversation",
        "group estimators compare whole conversations, or each turn with the others of its group that reached it",
        ["conversation", "turn"],
    )
    # rollout
    batch_size: int = setting(128, "completions per step, over all processes: prompts x group_size", positive=True)
    # algorithm: choices
    algorithm: str = setting(
        "ppo", "preset for those of the settings below that you do not set", lambda: list(PRESETS), section="algorithm"
    )
    group_size: int = setting(None, "completions per prompt", positive=True)
    ppo_epochs: int = setting(None, "passes over each batch", positive=True)
    minibatches: int = setting(None, "optimizer steps per pass; must divide batch_size", positive=True)
    # algorithm: divergence from the reference
    kl_coef: float = setting(
        None,
        "weight of the per-token KL to the reference; 0 loads no reference",
        section="divergence from the reference",
    )
    kl_in: str = setting(None, "where the KL goes", ["reward", "loss"])
    kl_estimator: str = setting(
        None,
        "exact: k3_ratio in the loss, k1 in the reward; for the others see references/rl_algorithms.md",
        ["k1", "k2", "k3", "k3_ratio"],
    )
    kl_target: float = setting(0.0, "adapt kl_coef to this KL in nats per completion (0: fixed; KL in the reward)")
    kl_horizon: int = setting(10_000, "completions, not steps, over which kl_coef adapts", positive=True)
    # algorithm: scores
    missing_eos_penalty: float = setting(
        None, "subtracted from the score of a completion without end token", section="scores"
    )
    overlong_share: float = setting(None, "soft overlong punishment, 0 to 1 over this last share of max_new_tokens")
    mask_truncated: bool = setting(False, "truncated completions contribute no gradient; their scores count")
    dynamic_sampling: bool = setting(None, "replace groups of equal score by newly sampled ones")
    max_refills: int = setting(3, "rounds of replacement per step; then groups of equal score fill the batch")
    max_oversampling: float = setting(
        1.0, "most groups sampled per missing group; how many depends on the share kept recently"
    )
    # algorithm: details of advantages and losses
    advantage_std: str = setting(
        "unbiased",
        "a group's deviation (grpo, gdpo): by n - 1 or n",
        ["unbiased", "biased"],
        section="advantages and losses",
    )
    advantage_eps: float = setting(1e-6, "added to a group's deviation (grpo, gdpo); 1e-6 as in verl, TRL has 1e-4")
    gamma: float = setting(1.0, "discount (gae, reinforce_pp)")
    gae_lambda: float = setting(0.95, "GAE lambda")
    whiten_rewards: bool = setting(False, "gae: divide per-token rewards by their standard deviation")
    whiten_advantages: bool = setting(True, "gae: give advantages mean 0 and variance 1")
    clip_eps_low: float = setting(None, "the ratio is clipped below at 1 - this; gmpo: log-ratio, dppo: divergence")
    clip_eps_high: float = setting(None, "the ratio is clipped above at 1 + this; gmpo: log-ratio, dppo: divergence")
    dual_clip: float = setting(None, "bound on the ratio if the advantage is negative; dppo: always (0: off)")
    sapo_tau_pos: float = setting(1.0, "sapo: steepness of the gate for positive advantages", positive=True)
    sapo_tau_neg: float = setting(1.05, "sapo: steepness of the gate for other advantages", positive=True)
    cov_frac: float = setting(2e-4, "clip_cov, kl_cov: share of tokens that the loss treats")
    cov_low: float = setting(1.0, "clip_cov: least covariance of a treated token")
    cov_high: float = setting(5.0, "clip_cov: largest covariance of a treated token")
    kl_cov_coef: float = setting(1.0, "kl_cov: weight of a treated token's |log-ratio|")
    target_kl: float = setting(0.0, "end the update when KL(old || new) per token exceeds this (0: off)")
    # critic, for advantage gae
    critic: str = setting(
        "separate",
        "separate backbone, or a value head on the policy's",
        ["separate", "shared"],
        section="critic, for advantage gae",
    )
    critic_model: str = setting("", "backbone of a separate critic (default: --model)")
    critic_warmup_steps: int = setting(0, "first steps that update the critic only")
    value_clip: float = setting(0.2, "bound on a value's change from its old value (0: off)")
    vf_coef: float = setting(0.5, "weight of the value loss")
    # optimization
    critic_lr: float = setting(0.0, "critic learning rate (0: 1e-3 below 50M parameters, else 1e-5)")

    def __post_init__(self):
        need(self.algorithm in PRESETS, f"got algorithm {self.algorithm!r}; expected one of {', '.join(PRESETS)}")
        for name, value in (GROUP_DEFAULTS | PRESETS[self.algorithm]).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        self.chat = self.chat or bool(self.environment)  # a conversation begins with a user's turn
