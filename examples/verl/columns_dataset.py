"""A data set class for verl 0.9: rows with our columns (`prompt`, `answer`, others), without converting the files.

    data.custom_cls.path=examples/verl/columns_dataset.py data.custom_cls.name=ColumnsDataset
    data.train_files=train.jsonl data.val_files=test.jsonl
    +data.answer_key=solution         # the column with the answer; `answer` without this
    +data.system_prompt='Be brief.'   # put before every prompt; none without this

`prompt` is a string or a list of messages. All other columns reach the reward as `extra_info`. verl reads .jsonl, .json
and .parquet; where `data_source` is missing, the file's rows are called "columns".
"""

from verl.utils.dataset.rl_dataset import RLHFDataset


def to_verl(row, index, answer_key="answer", system_prompt=None):
    """Return a row in verl's schema.

    Raises:
        KeyError: the row has no prompt or no answer.
    """
    if row.get("prompt") is None or row.get(answer_key) is None:
        got = f"row {index}: got the columns {', '.join(sorted(k for k in row if row[k] is not None))}"
        raise KeyError(f"{got}; expected prompt and {answer_key}; try +data.answer_key=COLUMN")
    prompt = row["prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if system_prompt:
        messages = [{"role": "system", "content": system_prompt}, *messages]
    named = {"prompt", answer_key, "data_source"}
    return {
        "prompt": messages,
        "data_source": row.get("data_source") or "columns",
        "reward_model": {"style": "rule", "ground_truth": row[answer_key]},
        "extra_info": {"index": index, **{k: v for k, v in row.items() if k not in named}},
    }


class ColumnsDataset(RLHFDataset):
    """verl's own data set over converted rows; filtering by length, sampling and resuming stay verl's."""

    def maybe_filter_out_long_prompts(self, dataframe=None):
        """Convert the rows that were read, then filter as verl does."""
        options = {"answer_key": self.config.get("answer_key", "answer")}
        options["system_prompt"] = self.config.get("system_prompt")
        rows = dataframe.map(to_verl, with_indices=True, fn_kwargs=options, remove_columns=dataframe.column_names)
        return super().maybe_filter_out_long_prompts(rows)
