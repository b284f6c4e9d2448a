"""Where this bundle and its embedded model, data and rewards lie."""

from pathlib import Path

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)
EMBEDDED_MODEL = str(BUNDLE / "assets" / "tiny_lm")
EMBEDDED_DATA = str(BUNDLE / "assets" / "data" / "arithmetic_train.jsonl")
EMBEDDED_EVAL = str(BUNDLE / "assets" / "data" / "arithmetic_eval.jsonl")
EMBEDDED_ENVIRONMENTS = str(BUNDLE / "examples" / "environments.py")
EMBEDDED_REWARDS = str(BUNDLE / "examples" / "reward_functions_library.py")


def held_out_source(config) -> str:
    """--eval_data, or the embedded task's where its data train; "" for none."""
    return config.eval_data or (EMBEDDED_EVAL if Path(config.data).resolve() == Path(EMBEDDED_DATA) else "")
