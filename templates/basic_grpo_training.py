"""GRPO with TRL and LoRA on one page: paste it, edit the constants and the rewards, run it.

    python templates/basic_grpo_training.py

Unchanged, it trains the embedded model on sums, on the CPU, in about a minute. Edit the two lines MODEL and DATA as
their comments say, and it trains Qwen on GSM8K on one GPU. For flags, resuming, held-out evaluation and several
GPUs, use scripts/grpo_train.py.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch: idle threads leave their core to other programs

ASSETS = Path(__file__).resolve().parent.parent / "assets"
MODEL = str(ASSETS / "tiny_lm")  # "Qwen/Qwen2.5-0.5B-Instruct"
DATA = str(ASSETS / "data" / "arithmetic_train.jsonl")  # "openai/gsm8k"

OUTPUT = "runs/basic_grpo"
STEPS = 40
GROUP = 8  # completions per prompt, compared with one another
BATCH = 64  # completions per step; a multiple of GROUP
PER_PASS = 64 if "tiny_lm" in MODEL else 8  # completions in memory at once; divides BATCH
MAX_TOKENS = 48 if "tiny_lm" in MODEL else 512
LEARNING_RATE = 5e-3 if "tiny_lm" in MODEL else 1e-5  # with LoRA ten times that of full training
LORA_RANK = 16
INSTRUCTION = "Think step by step. Then give the final number, and nothing else, as <answer>number</answer>."


# ------------------------------------------------------------------------------------------------ data


def make_dataset():
    """Rows with `prompt` (chat messages) and whatever columns the rewards take, here `answer`."""
    from datasets import load_dataset

    if Path(DATA).is_file():  # JSONL, JSON, CSV or parquet
        rows = load_dataset(Path(DATA).suffix[1:].replace("jsonl", "json"), data_files=DATA, split="train")
    else:
        rows = load_dataset(DATA, "main", split="train")  # "main" is the name of GSM8K's configuration
    if "question" not in rows.column_names:
        return rows

    def from_gsm8k(row):
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": row["question"]}]
        return {"prompt": messages, "answer": row["answer"].split("####")[-1].strip().replace(",", "")}

    return rows.map(from_gsm8k, remove_columns="question")


# ------------------------------------------------------------------------------------------------ rewards
# One number per completion. Columns of the data come as lists of the same length; the rest goes into **kwargs.


def tagged_answer(completion) -> str:
    """The text of the last <answer>…</answer>, or nothing."""
    _, _, after = completion[0]["content"].rpartition("<answer>")
    content, closed, _ = after.partition("</answer>")
    return content.strip().replace(",", "") if closed else ""


def correct(completions, answer, **kwargs) -> list[float]:
    """1 for the right answer: what the model is to learn."""
    return [float(tagged_answer(c) == right) for c, right in zip(completions, answer, strict=True)]


def well_formed(completions, **kwargs) -> list[float]:
    """1 for exactly one answer, at the end: makes `correct` reachable for a model that does not know the form yet."""
    texts = [c[0]["content"].strip() for c in completions]
    return [float(t.count("<answer>") == 1 and t.endswith("</answer>")) for t in texts]


def brief(completions, answer, completion_ids, **kwargs) -> list[float]:
    """Share of the length that is left, for right answers only, so that saying little never pays by itself."""
    right = correct(completions, answer)
    return [r * (1 - len(ids) / MAX_TOKENS) for r, ids in zip(right, completion_ids, strict=True)]


REWARDS, WEIGHTS = [correct, well_formed, brief], [1.0, 0.2, 0.1]


# ------------------------------------------------------------------------------------------------ training


def main():
    """Train, save adapter and merged model, and show what the merged model says."""
    import torch
    from peft import LoraConfig
    from transformers import AutoTokenizer, GenerationConfig, pipeline
    from transformers.utils import find_adapter_config_file
    from trl import GRPOConfig, GRPOTrainer

    if find_adapter_config_file(MODEL):  # a new adapter would take the place of this one
        what = f"got LoRA adapter {MODEL!r}; expected a whole model"
        sys.exit(f"error: {what}; try `python scripts/merge_adapter.py {MODEL} --output merged`, then that")
    gpu, dataset = torch.cuda.is_available(), make_dataset()
    if any(isinstance(prompt, list) and prompt[-1]["role"] == "assistant" for prompt in dataset["prompt"]):
        sys.exit("error: got a prompt that ends in an assistant's turn; TRL opens another; try scripts/grpo_train.py")
    bf16 = gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    torch.backends.cuda.enable_cudnn_sdp(False)  # its plans, one for each new shape, take 30 ms
    config = GRPOConfig(
        output_dir=OUTPUT,
        max_steps=STEPS,
        num_generations=GROUP,
        per_device_train_batch_size=PER_PASS,
        gradient_accumulation_steps=BATCH // PER_PASS,
        max_completion_length=MAX_TOKENS,
        learning_rate=LEARNING_RATE,
        warmup_steps=0.1,  # a share of all steps
        reward_weights=WEIGHTS,
        logging_steps=5,
        save_steps=100,
        seed=0,
        bf16=bf16,
        use_cpu=not gpu,
        activation_checkpointing=gpu,  # what gradient_checkpointing is called today
        dataloader_pin_memory=gpu,
        model_init_kwargs={"dtype": "bfloat16" if bf16 else "float32"},
    )
    model, lora = MODEL, LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear")
    # Unsloth: a GPU, vLLM, and an environment of its own, as it pins TRL and transformers; then let this block in
    # from unsloth import FastLanguageModel  # first line of the file: it patches TRL when imported
    # model, tokenizer = FastLanguageModel.from_pretrained(
    #     model_name=MODEL, max_seq_length=2048, load_in_4bit=True, fast_inference=True, max_lora_rank=LORA_RANK)
    # model = FastLanguageModel.get_peft_model(
    #     model, r=LORA_RANK, lora_alpha=2 * LORA_RANK, use_gradient_checkpointing="unsloth", random_state=0,
    #     target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    # lora = None
    trainer = GRPOTrainer(model=model, args=config, reward_funcs=REWARDS, train_dataset=dataset, peft_config=lora)
    model = trainer.model.get_base_model()  # what generation_config.json has for serving would spoil the rollouts
    serving, ends = model.generation_config, {"eos_token_id": trainer.eos_token_ids}
    model.generation_config = GenerationConfig(**ends, pad_token_id=trainer.processing_class.pad_token_id)
    trainer.train()

    trainer.save_model(f"{OUTPUT}/adapter")
    merged = trainer.model.merge_and_unload()
    merged.save_pretrained(f"{OUTPUT}/merged")
    serving.to_json_file(f"{OUTPUT}/merged/generation_config.json")
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(f"{OUTPUT}/merged")  # TRL's own pads on the left
    for file in Path(OUTPUT).rglob("*.safetensors"):  # written for their owner only
        file.chmod(Path(OUTPUT).stat().st_mode & 0o666)

    ask = pipeline("text-generation", model=f"{OUTPUT}/merged")
    ask.generation_config = ask.model.generation_config = model.generation_config
    for row in dataset.select(range(4)):
        said = ask(row["prompt"], max_new_tokens=MAX_TOKENS, do_sample=False)[0]["generated_text"][-1]["content"]
        print(f"{row['prompt'][-1]['content'][-60:]!r}, expected {row['answer']!r}: {said[-80:]!r}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit("error: got arguments; expected none; try editing the constants at the top")
    main()
