"""Texts of the files that --export writes."""

COMPUTE_SCORE = '''

# below: the call of verl {verl}, by verl_train.py --export
COLUMNS, GOLD, GOLD_IS_JSON = {columns!r}, {gold!r}, {is_json!r}  # verl calls the column GOLD ground_truth
WEIGHTS = {weights!r}
BITS = {bits}  # of a score: float32 adds up a group of equal ones exactly, or verl makes advantages of 0.1 of eight 1.2


def columns_of(ground_truth, extra_info) -> dict:
    """The columns of a row as they were in the data."""
    import json

    extra = dict(extra_info or {{}})
    coded, row = extra.get("json_columns"), {{}}
    coded = [] if coded is None else list(coded)  # a list from verl's rows, an array from those of pandas
    for name in COLUMNS:
        value = extra.get(name)
        row[name] = json.loads(value) if name in coded and value is not None else value
    if GOLD:
        row[GOLD] = json.loads(ground_truth) if GOLD_IS_JSON else ground_truth
    return row


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """One completion's weighted sum, and each function's own value; verl knows no None, which adds nothing and is 0."""
    import json
    import math

    row = columns_of(ground_truth, extra_info)
    prompt = json.loads((extra_info or {{}}).get("prompt_json") or "null")
    completion = {completion}
    parts = {{
{calls}
    }}
    total = sum(WEIGHTS[name] * value for name, value in parts.items() if value is not None)
    named = {{("acc_2" if name == "acc" else name): float(value or 0.0) for name, value in parts.items()}}
    mantissa, exponent = math.frexp(total)
    return {{**named, "score": math.ldexp(round(math.ldexp(mantissa, BITS)), exponent - BITS)}}
'''

RUN = """#!/usr/bin/env bash
# {title} in verl {verl}; written by verl_train.py --export.
# bash run.sh [KEY=VALUE ...]: further overrides win. Logs, samples and checkpoints go to run/ beside this file.
set -euo pipefail
HERE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
cd "$HERE"
mkdir -p run
unset RAY_ADDRESS  # a Ray of its own
metrics=$HERE/run/metrics.jsonl; n=1
while [[ -e $metrics ]]; do metrics=$HERE/run/metrics.$((++n)).jsonl; done  # verl empties the file that it is given
export VERL_FILE_LOGGER_PATH=$metrics TOKENIZERS_PARALLELISM=false
cpus=$(nproc)  # with fewer than {cpus} Ray would wait for ever, without a word
((cpus >= {cpus})) || cpus={cpus}
overrides=(
{overrides}
)
if ! python -c 'import flash_attn' 2>/dev/null; then  # verl's default attention needs it
  overrides+=(
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa
    actor_rollout_ref.model.use_remove_padding=False
  )
fi
exec python -u -m verl.trainer.main_ppo "${{overrides[@]}}" "$@"
"""

PORT = """# {source} in verl {verl}

`bash run.sh` in an environment with `verl[vllm]=={verl}` starts the run; the four files need each other and nothing
else. Every key below is one that verl {verl} reads, every default one of TRL 1.16's: neither has to be looked up.

{checked}- Not tried: training on GPUs.

| TRL | value | verl |
|---|---|---|
{table}

## What has no equal in verl, or another one

{notes}
- A reward that raises does not end the run: verl drops the row and goes on. `verl_train.py --run`, `--submit` and
  the folder of `--print` end it.
- A reward's None adds nothing to the sum, as in TRL; the means that verl logs count it as 0. Where all rewards are None
  the score is 0 and counts in its group; TRL leaves such a completion out.
- TRL has no limit on prompts, verl needs one: `data.max_prompt_length={max_prompt}`; longer ones are left out.
- Completions come from vLLM, whose probabilities differ a little from the trainer's: watch
  `training/rollout_probs_diff_mean`{correction}.
{few}- The same seed draws other rows and other samples. Incomplete batches are dropped by both.
"""

FEW = """- The data has fewer rows than a step has prompts, where TRL takes no step and verl does not start: `run.sh`
  lists the file {times} times, enough to try it, too little to train on.
"""
