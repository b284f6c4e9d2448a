import torch
from datasets import load_dataset
from trl import PPOTrainer, PPOConfig
from transformers import (LlamaTokenizer, AutoModelForCausalLM,
                          AutoModelForSequenceClassification, BitsAndBytesConfig)
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

tok = LlamaTokenizer.from_pretrained("sft-llama")
bnb_cfg = BitsAndBytesConfig(load_in_4bit=True,
                             bnb_4bit_compute_dtype=torch.bfloat16)
train_dataset = load_dataset("json", data_files="rows.jsonl", split="train")

policy = AutoModelForCausalLM.from_pretrained("sft-llama",
            quantization_config=bnb_cfg, device_map="auto")
policy = get_peft_model(policy, LoraConfig(r=16, target_modules=["q_proj","v_proj"]))
ref_model = AutoModelForCausalLM.from_pretrained("sft-llama",
            quantization_config=bnb_cfg, device_map="auto")
reward_model = AutoModelForSequenceClassification.from_pretrained(
            "rm_llama3b", num_labels=1, torch_dtype=torch.bfloat16, device_map="auto")
value_model = AutoModelForSequenceClassification.from_pretrained(
            "rm_llama3b", num_labels=1, torch_dtype=torch.bfloat16, device_map="auto")

ppo_cfg = PPOConfig(batch_size=4,
                    local_rollout_forward_batch_size=2,
                    learning_rate=5e-6,
                    num_ppo_epochs=5,
                    temperature=0.7)

ppo_trainer = PPOTrainer(ppo_cfg,
                         model=policy,
                         ref_model=ref_model,
                         reward_model=reward_model,
                         value_model=value_model,
                         processing_class=tok,
                         train_dataset=train_dataset,
                         eval_dataset=train_dataset)

ppo_trainer.train()
