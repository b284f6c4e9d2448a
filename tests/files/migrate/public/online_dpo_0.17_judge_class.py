from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import BasePairwiseJudge, OnlineDPOConfig, OnlineDPOTrainer


class HammingJudge(BasePairwiseJudge):
    def judge(self, prompts, completions, shuffle_order=False):
        return [int(len(a) < len(b)) for a, b in completions]


class ValidatedTrainer(OnlineDPOTrainer):
    def __init__(self, validation_example, **kwargs):
        super().__init__(**kwargs)
        self.validation_example = validation_example

    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)


def main(params):
    model = AutoModelForCausalLM.from_pretrained(params["model"], torch_dtype="bfloat16")
    tokenizer = AutoTokenizer.from_pretrained(params["model"])
    training_args = OnlineDPOConfig(
        output_dir="DPO",
        fp16=False,
        bf16=True,
        learning_rate=params["learning_rate"],
        max_new_tokens=params["length"],
        max_length=2 * params["length"],
        temperature=params["temperature"],
        beta=params["beta"],
        use_vllm=params["use_vllm"],
        per_device_train_batch_size=params["batch_size"],
    )
    trainer = ValidatedTrainer(
        validation_example=params["example"],
        model=model,
        processing_class=tokenizer,
        judge=HammingJudge(),
        args=training_args,
        train_dataset=Dataset.from_list(params["rows"]),
    )
    trainer.train()
