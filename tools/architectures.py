#!/usr/bin/env python3
"""Run selfcheck.py on a tiny random model of each causal language model of transformers, to see which train correctly.

    python tools/architectures.py                                   # scripts/ppo_train.py, all: a quarter of an hour
    python tools/architectures.py --only qwen3 glm4 --trainer templates/grpo.py

Each line of OUTPUT/results.jsonl has a family and its verdict: `passes`, `fails` (with the checks and what they
measured), `refused` (with the message), `not built` (transformers makes no model of these sizes); stdout counts them.
To run after another version of transformers is pinned. Left out: encoders, and models that want images or sound.

Exit codes: 0 done, 1 a family fails.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TINY_LM = ROOT / "assets" / "tiny_lm"
OTHERS = set(  # in AutoModelForCausalLM, but not text decoders, or second names of families listed
    "aria_text bart beam bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small blt camembert "
    "data2vec-text dots3_note electra emu3 ernie fuyu gemma3 gemma3n gemma4 gemma4_assistant gemma4_unified "
    "gemma4_unified_assistant git got_ocr2 llama4 marian mbart megatron-bert minimax_m3_vl_text mllama moshi "
    "moss_transcribe_diarize musicgen musicgen_melody mvp pegasus phi4_multimodal plbart prophetnet qwen3_5 "
    "qwen3_5_moe qwen4_exp reformer rembert roberta roberta-prelayernorm roc_bert roformer trocr whisper xlm "
    "xlm-roberta xlm-roberta-xl xlnet xmod".split()
)
SIZES = {  # under all names that configurations use; each takes those that it has
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "lru_width"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_key_value_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **{"expert_ffn_hidden_size": 32},
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_head_dim", "mamba_chunk_size", "chunk_size"), 16),
    **dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "mamba_n_heads", "mamba_d_head"), 8),
    **dict.fromkeys(("linear_num_value_heads", "rotary_dim"), 4),
    **dict.fromkeys(("linear_num_key_heads", "index_n_heads"), 2),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 262),
    **{"index_topk": 64, "sliding_window": 6, "attention_window_size": 16, "mamba_n_groups": 1},
    **{"num_nextn_predict_layers": 0, "num_kv_shared_layers": 0, "initializer_range": 0.2},
    **{"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0},
}
TRIALS = (  # changes that a family may need, tried in this order
    {},
    {"num_key_value_heads": 4},
    {"num_hidden_layers": 3},
    {"num_hidden_layers": 4},
    {"head_dim": None},
    {"num_experts_per_tok": 1},
)


def model_of(family: str):
    """A random model of a family with about 100,000 weights and finite logits.

    Raises:
        Exception: transformers' own, from the last of TRIALS.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    names, ids = {*kind().to_dict(), *getattr(kind, "attribute_map", {})}, torch.tensor([[5, 6, 7, 8, 9, 10]])
    for trial in TRIALS:
        sizes = {name: x for name, x in (SIZES | trial).items() if name in names and not (name in trial and x is None)}
        torch.manual_seed(0)
        try:
            model = AutoModelForCausalLM.from_config(kind(**sizes)).float().eval()
            with torch.no_grad():
                finite = bool(model(input_ids=ids).logits.isfinite().all())
            if not finite or model.num_parameters() > 30e6:
                raise ValueError(f"{model.num_parameters()} weights, logits finite: {finite}")
            return model
        except Exception as error:
            last = error
    raise last


def checked(family: str, folder: Path, args) -> dict:
    """The verdict on a family, as a line of results.jsonl."""
    from transformers import AutoTokenizer

    try:
        model = model_of(family)
    except Exception as error:  # of a hundred architectures
        return {"family": family, "verdict": "not built", "what": f"{type(error).__name__}: {error}"[:200]}
    model.generation_config.eos_token_id = [2, *range(200, 238)]  # completions of a batch end at different times
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder)
    command = [sys.executable, str(ROOT / "scripts" / "selfcheck.py"), args.trainer, "--model", str(folder), "--json"]
    command += ["--data", str(ROOT / "evals" / "files" / "sums.jsonl"), "--max_new_tokens", "24"]
    command += ["--reward", f"{ROOT}/examples/reward_functions_library.py:correctness_reward"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode not in (0, 1) or not done.stdout:
        return {"family": family, "verdict": "refused", "what": (done.stderr.strip().splitlines() or [""])[-1][:300]}
    failed = {row["name"]: row["measured"] for row in json.loads(done.stdout)["checks"] if row["status"] == "FAIL"}
    return {"family": family, "verdict": "fails" if failed else "passes", "what": failed or ""}


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "scripts" / "ppo_train.py"), metavar="FILE.py")
    parser.add_argument("--only", nargs="+", metavar="FAMILY", help="names as in config.json's model_type")
    parser.add_argument("--output", default="runs/architectures", metavar="FOLDER")
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    unknown = {*(args.only or [])} - {*KNOWN}
    if unknown:
        parser.error(f"got --only {' '.join(sorted(unknown))}; expected names that transformers knows")
    output, counts = Path(args.output), collections.defaultdict(list)
    output.mkdir(parents=True, exist_ok=True)
    with (output / "results.jsonl").open("w", encoding="utf-8") as out:
        for family in args.only or sorted({*KNOWN} - OTHERS):
            result = checked(family, output / family, args)
            counts[result["verdict"]].append(family)
            print(json.dumps(result), file=out, flush=True)
            print(f"{family}: {result['verdict']} {result['what']}", file=sys.stderr, flush=True)
    print(
        json.dumps({verdict: {"count": len(names), "families": names} for verdict, names in counts.items()}, indent=1)
    )
    return int(bool(counts["fails"]))


if __name__ == "__main__":
    sys.exit(main())
