"""What a Python file that trains with TRL's GRPOTrainer says of its run, read from its source, never run."""

import ast
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.foundation.user_scripts import names_bound_by

# what GRPOConfig of TRL 1.16 has where the file says nothing
TRL_DEFAULTS = {
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "beta": 0.0,
    "delta": None,
    "entropy_coef": 0.0,
    "epsilon": 0.2,
    "epsilon_high": None,
    "generation_batch_size": None,
    "gradient_accumulation_steps": 1,
    "importance_sampling_level": "token",
    "learning_rate": 1e-6,
    "loss_type": "dapo",
    "lr_scheduler_type": "linear",
    "mask_truncated_completions": False,
    "max_completion_length": 512,
    "max_grad_norm": 1.0,
    "max_steps": -1,
    "min_p": None,
    "num_generations": 8,
    "num_iterations": 1,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8,
    "repetition_penalty": 1.0,
    "reward_weights": None,
    "save_steps": 500,
    "scale_rewards": "group",
    "seed": 42,
    "steps_per_generation": None,
    "sync_ref_model": False,
    "temperature": 1.0,
    "top_entropy_quantile": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "use_bias_correction_kl": True,
    "vllm_importance_sampling_correction": True,
    "warmup_steps": 0,
    "weight_decay": 0.0,
}
PEFT_DEFAULTS = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "use_dora": False}
ARGUMENTS = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset")  # of GRPOTrainer, by their places


class TrlSource:
    """The calls of a file and the constants that they name.

    A name that is bound twice, or changed after it was bound, is no constant.
    """

    def __init__(self, file: str):
        need(Path(file).is_file(), f"got --from_trl {file!r}; expected the Python file of a run with GRPOTrainer")
        self.file = file
        try:
            self.text = Path(file).read_text(encoding="utf-8")
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"got --from_trl {file}, which cannot be read ({error}); expected Python source") from None
        self.calls, self.assigned, self.top, bound = {}, {}, {}, []
        for node in ast.walk(tree):
            bound += names_bound_by(node)
            if isinstance(node, ast.Call):
                self.calls.setdefault(name_of(node), []).append(node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, []).append(node.value)
        self.changed = {name for name in self.assigned if bound.count(name) > 1}
        self.constants = {name: nodes[0] for name, nodes in self.assigned.items() if name not in self.changed}
        for node in tree.body:
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if named or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
                self.top[node.name if named else node.targets[0].id] = node
        for name in ("GRPOTrainer", "GRPOConfig", "LoraConfig"):
            lines = ", ".join(str(call.lineno) for call in self.calls.get(name, []))
            several = f"got {file} with several {name}(…), in lines {lines}; expected one; try a copy with one of them"
            need(len(self.calls.get(name, [])) <= 1, several)

    def value(self, node: ast.expr):
        """The literal of an expression, or of the constant that it names; ValueError where it is another thing."""
        return ast.literal_eval(self.resolved(node))

    def resolved(self, node: ast.expr) -> ast.expr:
        """An expression, or that which the name of a constant stands for."""
        for _ in range(3):
            if isinstance(node, ast.Name) and node.id in self.constants:
                node = self.constants[node.id]
        return node

    def of_trainer(self, name: str) -> ast.expr | None:
        place, given = ARGUMENTS.index(name), [x for call in self.calls.get("GRPOTrainer", []) for x in call.args]
        return given[place] if len(given) > place else self.keywords("GRPOTrainer").get(name)

    def keywords(self, name: str) -> dict[str, ast.expr]:
        """The arguments by keyword of the call of a name, those of a dictionary `**name` too; others stay `**…`."""
        arguments: dict[str, ast.expr] = {}
        for keyword in [x for call in self.calls.get(name, []) for x in call.keywords]:
            spread = self.resolved(keyword.value)
            if keyword.arg:
                arguments[keyword.arg] = keyword.value
            elif isinstance(spread, ast.Dict) and all(isinstance(key, ast.Constant) for key in spread.keys):
                arguments |= {key.value: value for key, value in zip(spread.keys, spread.values, strict=True)}
            else:
                arguments[f"**{ast.unparse(keyword.value)}"] = keyword.value
        return arguments

    def literals(self, name: str) -> tuple[dict, list[str]]:
        """(keywords of the call of a name, those that are no literals, with their lines)."""
        settings, unknown = {}, []
        for key, node in self.keywords(name).items():
            try:
                settings[key] = self.value(node)
            except ValueError:
                text = key if key.startswith("**") else f"{key}={ast.unparse(node)}"
                unknown.append(f"{text} in line {node.lineno}")
        for target in self.changed:  # config.beta = 0.1 after config = GRPOConfig(…)
            calls = [node for node in self.assigned[target] if node in self.calls.get(name, [])]
            unknown += [f"{target}, which changes after line {node.lineno}" for node in calls]
        return settings, unknown


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))
