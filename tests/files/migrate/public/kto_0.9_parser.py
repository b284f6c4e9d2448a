"""
# Full training:
python examples/scripts/kto.py \
    --model_name_or_path=org/sft \
    --per_device_train_batch_size 16 \
    --warmup_ratio 0.1 \
    --bf16
"""

from dataclasses import dataclass

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser

from trl import KTOConfig, KTOTrainer, ModelConfig, get_peft_config, setup_chat_format


@dataclass
class ScriptArguments:
    dataset_name: str = "trl-lib/kto-mix-14k"


def format_dataset(example):
    example["prompt"] = tokenizer.apply_chat_template(example["prompt"], tokenize=False)
    return example


if __name__ == "__main__":
    parser = HfArgumentParser((ScriptArguments, KTOConfig, ModelConfig))
    script_args, kto_args, model_args = parser.parse_args_into_dataclasses()
    dataset = load_dataset(script_args.dataset_name)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    model_ref = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)

    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    if tokenizer.chat_template is None:
        model, tokenizer = setup_chat_format(model, tokenizer)

    formatted_dataset = dataset.map(format_dataset, num_proc=kto_args.dataset_num_proc)

    kto_trainer = KTOTrainer(
        model,
        model_ref,
        args=kto_args,
        train_dataset=formatted_dataset["train"],
        eval_dataset=formatted_dataset["test"],
        tokenizer=tokenizer,
        peft_config=get_peft_config(model_args),
    )
    kto_trainer.train()
    kto_trainer.save_model(kto_args.output_dir)
