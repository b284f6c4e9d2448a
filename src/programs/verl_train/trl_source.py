"""What a Python file that trains with TRL's GRPOTrainer says of its run, read from its source, never run."""

import ast
from pathlib import Path

from parts.messages import UserError, need

# what GRPOConfig of TRL 1.16 has where the file says nothing
TRL_DEFAULTS = {
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "beta": 0.0,
    "delta": None,
    "epsilon": 0.2,
    "epsilon_high": None,
    "gradient_accumulation_steps": 1,
    "importance_sampling_level": "token",
    "learning_rate": 1e-6,
    "loss_type": "dapo",
    "lr_scheduler_type": "linear",
    "mask_truncated_completions": False,
    "max_completion_length": 512,
    "max_grad_norm": 1.0,
    "max_steps": -1,
    "num_generations": 8,
    "num_iterations": 1,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8,
    "reward_weights": None,
    "save_steps": 500,
    "scale_rewards": "group",
    "seed": 42,
    "steps_per_generation": None,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "use_bias_correction_kl": True,
    "vllm_importance_sampling_correction": True,
    "warmup_steps": 0,
    "weight_decay": 0.0,
}


class TrlSource:
    """The calls of a file and the constants that they name."""

    def __init__(self, file: str):
        need(Path(file).is_file(), f"got --from_trl {file!r}; expected the Python file of a run with GRPOTrainer")
        self.file = file
        try:
            self.text = Path(file).read_text(encoding="utf-8")
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"got --from_trl {file}, which cannot be read ({error}); expected Python source") from None
        self.calls, self.constants, self.top = {}, {}, {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self.calls.setdefault(getattr(node.func, "attr", getattr(node.func, "id", "")), node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants.setdefault(node.targets[0].id, node.value)
        for node in tree.body:
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if named or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
                self.top[node.name if named else node.targets[0].id] = node

    def value(self, node: ast.expr):
        """The literal of an expression, or of the constant that it names; ValueError where it is another thing."""
        return ast.literal_eval(self.resolved(node))

    def resolved(self, node: ast.expr) -> ast.expr:
        """An expression, or that which the name of a constant stands for."""
        for _ in range(3):
            if isinstance(node, ast.Name) and node.id in self.constants:
                node = self.constants[node.id]
        return node

    def of_trainer(self, place: int, name: str) -> ast.expr | None:
        """An argument of GRPOTrainer, by its place or its keyword."""
        given = self.calls["GRPOTrainer"].args if "GRPOTrainer" in self.calls else []
        return given[place] if len(given) > place else self.keywords("GRPOTrainer").get(name)

    def keywords(self, name: str) -> dict[str, ast.expr]:
        """The arguments by keyword of the first call of a name, those of a dictionary `**name` too."""
        found: dict[str, ast.expr] = {}
        for keyword in self.calls[name].keywords if name in self.calls else ():
            if keyword.arg:
                found[keyword.arg] = keyword.value
            elif isinstance(keyword.value, ast.Name):
                given = self.constants.get(keyword.value.id)
                for key, value in zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ():
                    found |= {key.value: value} if isinstance(key, ast.Constant) else {}
        return found

    def config(self) -> tuple[dict, list[str]]:
        """(settings of GRPOConfig, as given or by default, those that are no literals)."""
        need("GRPOConfig" in self.calls, f"got --from_trl {self.file}, which has no GRPOConfig(…); expected one")
        settings, unknown = dict(TRL_DEFAULTS), []
        for name, node in self.keywords("GRPOConfig").items():
            try:
                settings[name] = self.value(node)
            except ValueError:
                unknown.append(f"{name}={ast.unparse(node)}")
        return settings, unknown
