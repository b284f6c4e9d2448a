from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer

config = PPOConfig(model_name="gpt2", learning_rate=1.41e-5, batch_size=64, mini_batch_size=16, init_kl_coef=0.1)
model = AutoModelForCausalLMWithValueHead.from_pretrained(config.model_name)
trainer = PPOTrainer(config, model, None, None)
