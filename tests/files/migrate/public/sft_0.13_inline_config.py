import click, os, torch
from datasets import Dataset, concatenate_datasets
from trl import SFTConfig, SFTTrainer, DataCollatorForCompletionOnlyLM
from alora.peft_model_alora import PeftModelForCausalLM
from alora.config import aLoraConfig
from transformers import AutoTokenizer, AutoModelForCausalLM

PROMPT = "<|start_of_role|>certainty<|end_of_role|>"

def formatting_prompts_func(example):
    output_texts = []
    for i in range(len(example['input'])):
        text = f"{example['input'][i]}{example['target'][i]}"

        output_texts.append(text)
    return output_texts


@click.command()
@click.option('--int_name', type=click.STRING, help='dataset')
def SFT_data(int_name):
    if 1: #LORA:
        model_name = "ibm-granite/granite-3.1-8b-instruct"
        tokenizer = AutoTokenizer.from_pretrained(model_name,padding_side='left',trust_remote_code=True)

        model_base = AutoModelForCausalLM.from_pretrained(model_name,device_map = 'auto', use_cache=False)
        tokenizer.pad_token = tokenizer.eos_token
    merged_dataset = concatenate_datasets([Dataset.from_dict({"input": ["a"], "target": ["b"]})])
    collator = DataCollatorForCompletionOnlyLM(PROMPT, tokenizer=tokenizer)
    peft_model = PeftModelForCausalLM(model_base, aLoraConfig(r=32), response_token_ids = tokenizer(PROMPT)['input_ids'])
    trainer = SFTTrainer(
        peft_model,
        train_dataset=merged_dataset,
        args=SFTConfig(output_dir="tmp",dataset_kwargs={"add_special_tokens":False},num_train_epochs=6,learning_rate=6e-7,max_seq_length = 4096,per_device_train_batch_size = 1,save_strategy="no",gradient_accumulation_steps=8,fp16=True),
        formatting_func=formatting_prompts_func,
    data_collator=collator
    #,
    )

 
    trainer.train()
    peft_model.save_pretrained("alora_" + int_name)


if __name__ == "__main__":

    SFT_data()
