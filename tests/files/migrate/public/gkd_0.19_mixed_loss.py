from trl import GKDConfig, GKDTrainer


class MixedTrainer(GKDTrainer):
    """Cross entropy beside the divergence."""

    def __init__(self, ce_weight=0.0, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ce_weight = ce_weight

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        return loss + self.ce_weight * model(**inputs).loss


training_config = {
    "output_dir": "o",
    "lmbda": 0.0,
    "beta": 1.0,  # reverse KL
    "max_length": 512,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "warmup_ratio": 0.05,
    "teacher_model_name_or_path": "t",
}
training_args = GKDConfig(**training_config)
trainer = MixedTrainer(model="s", teacher_model="t", args=training_args, train_dataset=rows, ce_weight=0.1)
trainer.train()
