import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainingArguments
from peft import LoraConfig
from datasets import load_dataset
from trl import SFTTrainer, DataCollatorForCompletionOnlyLM
import os
import wandb

sweep_config = {
    "method": "bayes",
    "parameters": {"gradient_accumulation_steps": {"values": [1, 2, 4]}},
}


def formatting_func(example):
    if not isinstance(example['question'], list):
        return [f"### Question: {example['question']}\n### Answer: {example['answer']}"]

    output_texts = []
    for i in range(len(example['question'])):
        text = f"### Question: {example['question'][i]}\n### Answer: {example['answer'][i]}"
        output_texts.append(text)
    return output_texts


def train(model_name, config={}):
    tokenizer = AutoTokenizer.from_pretrained(
        model_name,
        token=os.getenv("HUGGINGFACE_TOKEN"),
    )
    tokenizer.pad_token = tokenizer.eos_token
    bnb_config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type='nf4',
    )
    model = AutoModelForCausalLM.from_pretrained(
        model_name,
        token=os.getenv("HUGGINGFACE_TOKEN"),
        quantization_config=bnb_config,
        # device_map='auto',
    )
    model.add_adapter(LoraConfig(task_type="CAUSAL_LM"))
    dataset = load_dataset("openai/gsm8k", "main")
    train_dataset, val_dataset = dataset["train"].train_test_split(test_size=0.01).values()
    response_template_ids = tokenizer.encode("\n### Answer:", add_special_tokens=False)[2:]
    collator = DataCollatorForCompletionOnlyLM(response_template_ids, tokenizer=tokenizer)

    train_config = dict(
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        gradient_accumulation_steps=2,
        optim="paged_adamw_32bit",
        bf16=True,
        eval_strategy="steps",
        logging_steps=5,
        learning_rate=1e-4,
        # max_grad_norm=0.3,
        num_train_epochs=1,
        warmup_steps=10,
        weight_decay=0.01,
        lr_scheduler_type="constant",
        gradient_checkpointing=True,
        push_to_hub=False,
    ) | config
    training_arguments = TrainingArguments(
        run_name=wandb.run.name,
        report_to="wandb",
        output_dir=f"./output/{wandb.run.name}",
        **train_config,
    )

    trainer = SFTTrainer(
        model=model,
        args=training_arguments,
        train_dataset=train_dataset,
        eval_dataset=val_dataset,
        # packing=True,
        # max_seq_length=1024,
        processing_class=tokenizer,
        formatting_func=formatting_func,
        data_collator=collator,
    )
    trainer.train()
    trainer.save_model(f"output/{wandb.run.name}")


if __name__ == "__main__":
    wandb.init()
    train("meta-llama/Llama-3.2-1B", config=dict(wandb.config))
