"""Where this bundle and its embedded model, data and rewards lie."""

from pathlib import Path

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)
EMBEDDED_MODEL = str(BUNDLE / "assets" / "tiny_lm")
EMBEDDED_DATA = str(BUNDLE / "assets" / "data" / "arithmetic_train.jsonl")
EMBEDDED_EVAL = str(BUNDLE / "assets" / "data" / "arithmetic_eval.jsonl")
EMBEDDED_ENVIRONMENTS = str(BUNDLE / "examples" / "environments.py")
EMBEDDED_REWARDS = str(BUNDLE / "examples" / "reward_functions_library.py")
