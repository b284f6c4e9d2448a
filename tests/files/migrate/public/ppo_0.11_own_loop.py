import math
import torch

from tqdm import tqdm
from transformers import StoppingCriteriaList
from trl import PPOTrainer, PPOConfig, AutoModelForCausalLMWithValueHead, create_reference_model
from utils import line_sat, load_model_and_tokenizer

batch_size = 128
mini_batch_size = 16
gradient_accumulation_steps = 1
epochs = 4
learning_rate = 1.41e-5
use_wandb = True
dataset = None

# settings of the command line win over those above
exec(open('configurator.py').read())

model, tokenizer = load_model_and_tokenizer("models/sat")
model = AutoModelForCausalLMWithValueHead(model)
ref_model = create_reference_model(model)

generation_kwargs = {
    "min_length": -1,
    "top_k": 0.0,
    "top_p": 1.0,
    "do_sample": True,
    "max_new_tokens": 400,
}

ppo_config = PPOConfig(
    exp_name=dataset,
    learning_rate=learning_rate,
    batch_size=batch_size,
    mini_batch_size=mini_batch_size,
    gradient_accumulation_steps=gradient_accumulation_steps,
    ppo_epochs=epochs,
    log_with='wandb' if use_wandb else None,
)

ppo_trainer = PPOTrainer(
    config = ppo_config,
    model = model,
    ref_model = ref_model,
    tokenizer = tokenizer,
    dataset = dataset,
)

for epoch in tqdm(range(ppo_trainer.config.ppo_epochs), "epoch: "):
    for batch in tqdm(ppo_trainer.dataloader):
        responses = ppo_trainer.generate(batch["query"], **generation_kwargs)
        rewards = [torch.tensor(math.exp(-len(r))) for r in responses]
        stats = ppo_trainer.step(batch["query"], responses, rewards)
