import wandb
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import OnlineDPOConfig, OnlineDPOTrainer


from pairwise_judge import PairwiseJudge

MODEL_NAME = "Qwen/Qwen3-0.6B"
CONSTANT_PROMPT = [
    {"role": "user", "content": "Draw a pelican"}
]
NUM_SAMPLES = 10

model = AutoModelForCausalLM.from_pretrained(MODEL_NAME)
tokenizer = AutoTokenizer.from_pretrained(MODEL_NAME)

judge = PairwiseJudge()

train_dataset = Dataset.from_dict({"prompt": [CONSTANT_PROMPT] * NUM_SAMPLES})

config = OnlineDPOConfig(
    output_dir="./checkpoints",
    
    # wandb integration
    report_to="wandb",
    logging_steps=1,
)

trainer = OnlineDPOTrainer(
    model=model,
    judge=judge,
    args=config,
    processing_class=tokenizer,
    train_dataset=train_dataset,
)

trainer.train()
