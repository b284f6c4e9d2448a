"""Search with a rollout function; all settings come from the command line."""

import os
import re

from datasets import load_dataset

from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser
from search_rollout import create_search_rollout_func


os.environ.setdefault("TRACKIO_SPACE_ID", "trl-trackio")


def exact_match(completions, solution, **kwargs):
    return [float(re.search("a", c[-1]["content"]) is not None) for c, s in zip(completions, solution)]


if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()

    dataset = load_dataset("org/nq", "nq")
    search_rollout = create_search_rollout_func(max_search_calls=10)
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        train_dataset=dataset["train"],
        eval_dataset=dataset["test"],
        rollout_func=search_rollout,
        reward_funcs=[exact_match],
        args=training_args,
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name)
