import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from datasets import concatenate_datasets, load_from_disk
from trl import SFTTrainer, GKDTrainer, GKDConfig

teacher_name = "google/gemma-2-9b-it"
teacher = AutoModelForCausalLM.from_pretrained(
        teacher_name, torch_dtype=torch.float16, device_map="auto",
        attn_implementation="flash_attention_2" # against NaN
)
tokenizer = AutoTokenizer.from_pretrained(teacher_name)

student = AutoModelForCausalLM.from_pretrained(
        "google/gemma-2-2b-it", torch_dtype=torch.float16, device_map="auto",
    )

train_ds = concatenate_datasets([load_from_disk("a"), load_from_disk("b")])

#GKD Config
train_args = GKDConfig(
    output_dir="runs/distill",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    num_train_epochs=2,
    learning_rate=5e-5,
    logging_steps=50,
    save_steps=2000,
    fp16=True,
    deepspeed="deepspeedconfig.json",
    report_to="none",
    warmup_ratio = 0.1,
    lmbda = 0.5, #default 0.5
    beta = 0.5, #default 0.5
    seq_kd=False, #ground truth
    dataloader_num_workers=8

)



trainer = GKDTrainer( #default collator
    model=student,
    teacher_model=teacher,
    train_dataset=train_ds,
    args = train_args,
    processing_class=tokenizer
)

trainer.train()
