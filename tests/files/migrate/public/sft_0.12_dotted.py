"""s1: everything behind the names of the packages."""
import os
from dataclasses import asdict, dataclass, field

import transformers
import trl
from datasets import load_dataset


@dataclass
class TrainingConfig:
    model_name: str = field(default="Qwen/Qwen2.5-32B-Instruct")
    block_size: int = field(default=32768)
    train_file_path: str = field(default="org/s1K_tokenized")


def train():
    parser = transformers.HfArgumentParser((TrainingConfig, trl.SFTConfig))
    config, args = parser.parse_args_into_dataclasses()
    print({**asdict(config), **asdict(args)})
    kwargs = {}
    if "70B" in config.model_name:
        kwargs = {"device_map": "auto", "torch_dtype": "auto", "attn_implementation": "flash_attention_2", "use_cache": False}
        model = transformers.AutoModelForCausalLM.from_pretrained(config.model_name, **kwargs)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(config.model_name)
    dataset = load_dataset(config.train_file_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(config.model_name, use_fast=True)
    # the loss is over the answers
    collator = trl.DataCollatorForCompletionOnlyLM(
        instruction_template="<|im_start|>user", response_template="<|im_start|>assistant\n", tokenizer=tokenizer, mlm=False
    )
    args.dataset_text_field = "text"
    args.max_seq_length = config.block_size
    trainer = trl.SFTTrainer(
        model,
        train_dataset=dataset["train"],
        eval_dataset=dataset["test"] if "test" in dataset else dataset["train"],
        args=args,
        data_collator=collator,
    )
    trainer.train()
    trainer.save_model(output_dir=args.output_dir)


if __name__ == "__main__":
    train()
