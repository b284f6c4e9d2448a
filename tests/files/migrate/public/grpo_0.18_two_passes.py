"""Full fine-tuning on four GPUs: two passes over each batch, several weighted rewards."""
import argparse

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def accuracy(completions, answer, **kwargs):
    return [float(a in c[0]["content"]) for c, a in zip(completions, answer)]


def format_ok(completions):
    return [float("</think>" in c[0]["content"]) for c in completions]


class Responses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print(args.max_prompt_length, logs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir")
    parser.add_argument("--max_steps", type=int, default=500)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype="bfloat16")
    tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B")
    training_args = GRPOConfig(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        num_generations=4,
        max_completion_length=2048,
        max_prompt_length=512,
        temperature=0.9,
        use_vllm=False,  # HF generate
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        learning_rate=5e-6,
        warmup_ratio=0.1,
        bf16=True,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        loss_type="dr_grpo",
        beta=0.04,
        scale_rewards=False,
        num_iterations=2,
        remove_unused_columns=False,
        reward_weights=[1.0, 0.2],
        log_completions=True,
    )
    trainer = GRPOTrainer(
        model=model,
        args=training_args,
        train_dataset=load_dataset("org/math", split="train"),
        reward_funcs=[accuracy, format_ok],
        processing_class=tokenizer,
    )
    trainer._gdpo_enabled = True
    trainer.add_callback(Responses())
    trainer.train()


if __name__ == "__main__":
    main()
