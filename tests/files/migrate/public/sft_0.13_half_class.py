"""Quick: texts in a column, lengths at the trainer."""
from datasets import load_dataset
from transformers import TrainingArguments
from trl import SFTTrainer

import model_loading


def make(cfg, callbacks=None, **kwargs):
    model, tokenizer = model_loading.get(cfg)
    train, test = load_dataset("csv", data_files="a.csv", split=["train[:90%]", "train[90%:]"])
    trainer_kwargs = dict(
        model=model,
        tokenizer=tokenizer,
        train_dataset=train,
        dataset_text_field="text",
        max_seq_length=cfg.max_seq_length,
        dataset_num_proc=4,
        packing=False,
        args=TrainingArguments(
            per_device_train_batch_size=2,
            learning_rate=cfg.learning_rate,
            fp16=cfg.fp16,
            bf16=not cfg.fp16,
            seed=cfg.seed,
            output_dir=cfg.output_dir,
            eval_strategy="steps",
            **kwargs,
        ),
        callbacks=callbacks,
        eval_dataset=test,
    )
    return SFTTrainer(**trainer_kwargs)
