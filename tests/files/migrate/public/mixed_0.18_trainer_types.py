"""One pipeline, a trainer by name; everything is imported where it is used."""
import enum


class TrainerType(enum.Enum):
    SFT = "sft"
    GRPO = "grpo"
    PPO = "ppo"


class Pipeline:
    def __init__(self, config, model, tokenizer, data):
        self.config, self.model, self.tokenizer, self.data = config, model, tokenizer, data

    def training_args(self):
        if self.config.trainer_type == TrainerType.GRPO:
            from trl import GRPOConfig

            return GRPOConfig(
                output_dir=self.config.output_dir,
                per_device_train_batch_size=self.config.batch,
                num_generations=self.config.num_generations,
                warmup_ratio=self.config.warmup_ratio,
                no_cuda=not self.config.use_gpu,
                bf16=self.config.bf16 and self.config.use_gpu,
            )
        elif self.config.trainer_type == TrainerType.SFT:
            from trl import SFTConfig

            return SFTConfig(output_dir=self.config.output_dir, max_seq_length=self.config.max_seq_length, packing=True)
        elif self.config.trainer_type == TrainerType.PPO:
            from trl import PPOConfig

            return PPOConfig(output_dir=self.config.output_dir, kl_coef=self.config.kl_coef, cliprange=0.2)

    def trainer(self):
        args = self.training_args()
        if self.config.trainer_type == TrainerType.GRPO:
            from trl import GRPOTrainer

            return GRPOTrainer(model=self.model, reward_funcs=self.reward, args=args, train_dataset=self.data)
        from trl import SFTTrainer

        return SFTTrainer(model=self.model, args=args, train_dataset=self.data, processing_class=self.tokenizer)

    def reward(self, prompts, completions, **kwargs):
        return [1.0 for _ in completions]
