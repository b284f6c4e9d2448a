#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "numpy", "peft"]
# ///
"""Merge a LoRA adapter into its base: one plain folder for transformers, vLLM or SGLang, checked to be the same model.

    W = W_base + (lora_alpha / r) B A, in fp32 whatever the base's dtype is, then rounded to --dtype    Hu 2021, eq. 3

The folder gets weights, tokenizer, chat template and the base's generation config. stdout has one JSON object that also
says how far log-probs of base + adapter and of the merged model differ, before writing and after reloading the folder.

Deliberately left out: reward models and other heads (task type CAUSAL_LM only); several adapters into one; quantised
bases, which would round part of the update away (give the unquantised model as --base); GPUs: fp32 must fit in memory.

    python scripts/merge_adapter.py runs/x/final --output merged                              # in the base's own dtype
    python scripts/merge_adapter.py adapter --base Qwen/Qwen2.5-0.5B-Instruct --dtype bf16 --output merged

Exit codes: 0 written, 1 written, but the adapter changes nothing, 2 bad input (nothing is written).
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from parts.foundation.exit_codes import quiet_environment
from parts.foundation.messages import Help, UserError, need, say, tell
from parts.foundation.settings import parse_flags
from parts.networks.adapters import adapter_settings, note_untied, tokenizer_of, untie, with_adapter
from parts.networks.whole_models import check_model_folder, load_whole
from parts.running.output_folder import write_folder

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
TEXTS = ("The capital of France is", "34+71=", "def double(x):\n    return")
TOLERANCE = 1e-3  # of the largest logit, between base + adapter and the merged weights


def base_name(folder: str, base: str | None) -> str:
    """The base of an adapter that can be merged."""
    settings, got = adapter_settings(folder), f"got the adapter {folder!r}"
    if not settings and (Path(folder) / "config.json").is_file():
        raise UserError(f"{got}, a plain model; expected an adapter; there is nothing to merge: use it as it is")
    need(settings, f"{got}, without adapter_config.json; expected a folder of peft; try a run's final/")
    return base or settings.get("base_model_name_or_path") or ""


def load_base(name: str, folder: str) -> tuple:
    """(the base in fp32, the dtype that it declares, the adapter's tokenizer); without the quantisation of training."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    got = f"got the base {name!r}"
    try:
        check_model_folder(name)
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        quantised = getattr(config, "quantization_config", None)
        need(not quantised, f"{got}, whose weights are quantised; expected the model that it was made from; try --base")
        base = load_whole(AutoModelForCausalLM.from_pretrained, name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(folder, name), trust_remote_code=False)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{got} of {folder}: {error}; expected a folder or hub id; try --base") from None
    return base, getattr(config, "dtype", None) or torch.float32, tokenizer


def log_probs(model, batches: list):
    """Log-probs of every next token of the texts, as fp32, [tokens, vocabulary]."""
    import torch

    with torch.no_grad():
        return torch.cat([model(input_ids=ids).logits[0].float().log_softmax(-1) for ids in batches])


def merged_by_layers(model, dtype) -> tuple[float, float]:
    """Merge layer by layer, so that one layer's weights are held twice and not the model.

    Returns:
        The largest change of a weight, and the share of the update that rounding to `dtype` keeps: its projection.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    largest = kept = whole = 0.0
    for module in model.modules():
        pairs = []
        if isinstance(module, BaseTunerLayer):
            weight = getattr(module.get_base_layer(), getattr(module, "parameter_name", "weight"))  # experts have names
            pairs = [(weight.detach().clone(), weight)]
            try:
                module.merge()
            except RuntimeError as error:
                why = str(error).rstrip(".")
                raise UserError(f"got an adapter that peft cannot merge: {why}; try serving it unmerged") from None
        elif isinstance(module, ModulesToSaveWrapper):
            saved = module.modules_to_save[module.active_adapters[0]]
            pairs = zip(module.original_module.parameters(), saved.parameters(), strict=True)
        for before, after in pairs:
            change = (after - before).detach()
            largest, whole = max(largest, change.abs().max().item()), whole + change.square().sum().item()
            kept += (change * (after.to(dtype).float() - before.to(dtype).float())).sum().item()
    return largest, kept / whole if whole else 1.0


def merged_folder(args) -> dict:
    """Merge, compare, write and compare again; what was measured."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, output = args.adapter, Path(args.output)
    name = base_name(folder, args.base)
    need(not output.exists(), f"got --output {output}, which exists; expected a new folder")
    base, saved_dtype, tokenizer = load_base(name, folder)
    dtype = getattr(torch, DTYPES[args.dtype]) if args.dtype else saved_dtype
    batches = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    model = with_adapter(base, folder)
    expected = log_probs(model, batches)
    need(expected.isfinite().all(), f"got log-probs that are not finite, of {name} with {folder}; expected numbers")
    untie(model)
    changed, kept = merged_by_layers(model, dtype)
    merged = model.unload()
    note_untied(merged)
    difference = (log_probs(merged, batches) - expected).abs().max().item()
    limit = TOLERANCE * expected.abs().max().item()
    need(difference <= limit, f"got log-probs that differ by {difference:.3g} after the merge; expected {limit:.3g}")

    def write(target: Path) -> None:
        merged.to(dtype).save_pretrained(target)
        # as it came: being called changes its padding
        AutoTokenizer.from_pretrained(tokenizer.name_or_path).save_pretrained(target)

    write_folder(output, write, "nothing of it is left")
    again = AutoModelForCausalLM.from_pretrained(output, dtype="auto").eval()
    reloaded = log_probs(again, batches)
    if not reloaded.isfinite().all():
        shutil.rmtree(output)
        raise UserError(f"got log-probs in {dtype} that are not finite; expected a dtype with room; try --dtype bf16")
    same = (reloaded.argmax(-1) == expected.argmax(-1)).float().mean().item()
    return {
        "wrote": str(output),
        "base": name,
        "dtype": str(again.dtype).removeprefix("torch."),
        "architecture": type(again).__name__,
        "chat_template": bool(getattr(tokenizer, "chat_template", None)),
        "largest_weight_change": changed,
        "update_kept": kept,
        "merge": {"largest_logprob_difference": difference, "allowed": limit},
        "saved": {"largest_logprob_difference": (reloaded - expected).abs().max().item(), "same_top_token": same},
        "tokens_compared": len(expected),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    parser.add_argument("adapter", metavar="ADAPTER", help="folder with adapter_config.json")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="new folder for the merged model")
    parser.add_argument("--base", metavar="M", help="folder or hub id (default: what the adapter's config names)")
    parser.add_argument("--dtype", choices=[*DTYPES], help="dtype of the weights (default: what the base declares)")
    args = parse_flags(parser, argv)
    quiet_environment()
    try:
        report = merged_folder(args)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    tell(json.dumps(report, indent=1))
    kept = report["update_kept"]
    if not report["largest_weight_change"]:
        say("warning: the adapter changes no weight (its B is 0): was it trained?")
    elif kept < 0.5:
        say(f"warning: rounding to {report['dtype']} keeps {kept:.0%} of the update; try --dtype fp32")
    return int(not (report["largest_weight_change"] and kept))


if __name__ == "__main__":
    sys.exit(main())
