from datasets import load_dataset
import torch

from transformers import AutoTokenizer, AutoModelForCausalLM, BitsAndBytesConfig
from trl import setup_chat_format,SFTTrainer
from transformers import TrainingArguments
from peft import LoraConfig

dataset = load_dataset("json", data_files="train_dataset.json", split="train")

bnb_config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
)

model_id = "org/code-7b"
base_model = AutoModelForCausalLM.from_pretrained(
    model_id,
    device_map = "auto",
    torch_dtype=torch.bfloat16,
)

tokenizer = AutoTokenizer.from_pretrained(
          model_id
    )
tokenizer.padding_side = "right"
base_model,tokenizer = setup_chat_format(base_model,tokenizer)

peft_config = LoraConfig(r = 256, 
                         lora_alpha = 512,
                         target_modules = "all-linear",
                         bias = "none"
                         )

    
training_args = TrainingArguments(
    output_dir = "text-to-sql",
    num_train_epochs = 3,
    optim = "adamw_torch_fused",
    logging_steps = 10,
    per_device_train_batch_size = 3,
    gradient_accumulation_steps = 2,
    gradient_checkpointing = True,
    learning_rate = 2e-4,
    save_strategy = "epoch",
    bf16 = True,
    tf32 = True,
    max_grad_norm = 0.3,
    warmup_ratio = 0.03,
    lr_scheduler_type = "constant",
    push_to_hub = False,
    report_to = "tensorboard",
    remove_unused_columns=False
  )                     

trainer = SFTTrainer(
    model = base_model,
    peft_config = peft_config,
    args = training_args,
    train_dataset = dataset,
    max_seq_length = 3072,
    packing = True,
    tokenizer = tokenizer,
    dataset_kwargs={
        "add_special_tokens": False,  # We template with special tokens
        "append_concat_token": False, # No need to add additional separator token
    }

)

trainer.train()
trainer.save_model()
