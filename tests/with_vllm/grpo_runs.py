"""Runs of grpo_train.py one after the other in one process, where they share vLLM's engine; most have a planted fault.

python tests/with_vllm/grpo_runs.py FOLDER      # with eval.jsonl; writes outcomes.json: {name: [exit code, messages]}
"""

import contextlib
import io
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from conftest import ROOT, load_script
from vllm_helpers import share_engines

FLAGS = ["--use_vllm=colocate", "--vllm_args", "max_num_seqs=64", "--use_cpu", "--temperature=0.8", "--eval_every=0"]
FLAGS += ["--max_completion_length=24", "--max_prompt_length=40", "--plot_every=0", "--save_steps=0"]
LEARNS = ["--per_device_train_batch_size=64", "--steps=6"]
SHORT = ["--per_device_train_batch_size=16", "--steps=3", "--check_sync=1"]
LOST = "model.layers.1.self_attn.k_proj.weight"


def partly(grpo) -> None:
    """One tensor keeps its first value in the sampler."""
    kept = {}

    def all_but_one(engine) -> None:
        weights = ((n, kept.setdefault(n, x.clone()) if n == LOST else x) for n, x in grpo.with_tied_head(engine))
        grpo.network_of(engine).reload_weights(weights_iterator=weights)

    grpo.reload_layers = all_but_one


def unmerged(grpo) -> None:
    """The base model's weights are copied without the adapters."""
    from peft import PeftModel

    PeftModel.merge_adapter = PeftModel.unmerge_adapter = lambda self: None


TALKS = [f"--environment={ROOT / 'examples' / 'environments.py'}:SecondAttempt", "--max_turns=2"]
ADAPTERS = [*SHORT, "--lora_rank=4", "--learning_rate=1e-2"]
RUNS = {"learns": (LEARNS, None), "adapters": (ADAPTERS, None), "partly": (SHORT, partly)}
RUNS |= {"talks": ([*SHORT, *TALKS, "--temperature=1.3", "--max_conversation_tokens=160"], None)}
RUNS |= {"unmerged": (ADAPTERS, unmerged)}


def outcome(folder: Path, name: str) -> tuple[int, str]:
    """Exit code of a run, and what it said."""
    (flags, fault), grpo = RUNS[name], load_script("grpo_train")
    saved, said = dict(vars(grpo)), io.StringIO()
    if fault:
        fault(grpo)
    with contextlib.redirect_stderr(said):
        code = grpo.main([*FLAGS, f"--eval_data={folder / 'eval.jsonl'}", *flags, f"--output_dir={folder / name}"])
    vars(grpo).update(saved)
    return code, said.getvalue()


if __name__ == "__main__":
    share_engines()
    target = Path(sys.argv[1])
    (target / "outcomes.json").write_text(json.dumps({name: outcome(target, name) for name in RUNS}))
