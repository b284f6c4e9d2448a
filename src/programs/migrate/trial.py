"""--check: one step of the new script on a two-layer cut of its model with four rows, in a process of its own."""

import contextlib
import json
import os
import runpy
import socket
import sys
import tempfile
from pathlib import Path

from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.messages import UserError, need, say
from parts.foundation.user_scripts import script_end

TRIAL_SECONDS = 600
ONE_STEP = "--one_step"  # the first argument of the process
ROWS = 4
# On the CPU, alone, one step: what the settings of the run are replaced by.
SMALL = {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None, "report_to": "none", "save_strategy": "no"} | {
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "max_steps": 1,
    "use_vllm": False,
    "gradient_accumulation_steps": 1,
    "deepspeed": None,
    "fsdp": None,
    "torch_compile": False,
    "use_liger_kernel": False,
    "resume_from_checkpoint": None,
    "dataloader_num_workers": 0,
    "steps_per_generation": None,
    "generation_batch_size": None,
}
LIMITS = {"max_completion_length": 8, "max_new_tokens": 8, "response_length": 8}


class Place:
    """Models by their names, cut to two layers, in a folder of the trial."""

    def __init__(self, folder: Path, model: str):
        self.folder, self.model, self.folders, self.said = folder, model, {}, []
        self.cutting = False

    def of(self, name) -> str:
        """The folder with the cut of a model."""
        name = str(name)
        if name.startswith(str(self.folder)) or self.cutting:
            return name
        if name not in self.folders:
            self.cutting = True
            self.folders[name] = self.cut(self.model or name)
            self.cutting = False
        return self.folders[name]

    def cut(self, name: str) -> str:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        try:
            there = {"local_files_only": not is_online()}
            config, tokenizer = AutoConfig.from_pretrained(name, **there), AutoTokenizer.from_pretrained(name, **there)
        except (OSError, ValueError):
            self.said.append(f"{name} is not here: the embedded model stands for it; --model takes another")
            config, tokenizer = (x.from_pretrained(EMBEDDED_MODEL) for x in (AutoConfig, AutoTokenizer))
        text = config.get_text_config()
        layers, text.num_hidden_layers = text.num_hidden_layers, min(2, text.num_hidden_layers)
        for key, value in vars(text).items():
            if isinstance(value, list) and len(value) == layers:
                setattr(text, key, value[: text.num_hidden_layers])
        target = str(self.folder / f"cut{len(self.folders)}")
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
        return target


def is_online() -> bool:
    """Whether the hub answers; transformers itself asks for minutes where none does."""
    host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").split("//")[-1].split("/")[0]
    name, _, port = host.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((name, int(port or 443)), timeout=3):
        return not os.environ.get("HF_HUB_OFFLINE")
    return False


def replace_loading(place: Place) -> None:
    """Every from_pretrained loads the cut."""
    import transformers
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    autos = (transformers.AutoConfig, transformers.AutoTokenizer, transformers.AutoProcessor, _BaseAutoModelClass)
    for owner in (*autos, transformers.PreTrainedModel, transformers.GenerationConfig):
        function = owner.__dict__["from_pretrained"].__func__

        def load(cls, name, *args, function=function, **kwargs):
            for key in ("quantization_config", "device_map", "attn_implementation", "revision", "token"):
                kwargs.pop(key, None)
            return function(cls, place.of(name), *args, **kwargs)

        owner.from_pretrained = classmethod(load)


def replace_data(data: str, said: list[str]) -> None:
    """load_dataset gives the first rows of the set, or of --data."""
    import datasets

    original = datasets.load_dataset

    def load(path, *args, split=None, **kwargs):
        try:
            rows = datasets.load_dataset_from_file(data) if data else original(path, *args, split=split, **kwargs)
        except Exception as error:
            line = (str(error).splitlines() or [""])[0]
            raise UserError(
                f"got the data set {path!r}, which does not load here ({line}); try --check --data FILE"
            ) from None
        if data and split is None:
            rows = datasets.DatasetDict({"train": rows, "test": rows})
        return rows

    datasets.load_dataset_from_file = lambda file: datasets.Dataset.from_list(rows_of(file))
    datasets.load_dataset = load


def rows_of(file: str) -> list[dict]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]


def replace_config(record: dict, folder: Path) -> None:
    """Every TRL config is made as the script says, noted, and made again for one step."""
    import transformers

    original = transformers.TrainingArguments.__post_init__

    def small(self):
        record.setdefault(type(self).__name__, {k: v for k, v in vars(self).items() if is_plain(v)})
        values = SMALL | {"output_dir": str(folder / "run")}
        values |= {name: min(getattr(self, name), high) for name, high in LIMITS.items() if getattr(self, name, None)}
        if hasattr(self, "num_generations"):
            values["per_device_train_batch_size"] = self.num_generations
        elif self.per_device_train_batch_size > ROWS:
            values["per_device_train_batch_size"] = ROWS
        if "8bit" in str(self.optim) or "paged" in str(self.optim):
            values["optim"] = "adamw_torch"
        for name, value in values.items():
            if hasattr(self, name):
                setattr(self, name, value)
        original(self)

    transformers.TrainingArguments.__post_init__ = small


def is_plain(value) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | dict)


def replace_trainer(record: dict, folder: Path) -> None:
    """Trainers get four rows, and end the script behind one step."""
    import transformers

    start, train = transformers.Trainer.__init__, transformers.Trainer.train

    def few(rows):
        return rows.select(range(min(ROWS, len(rows)))) if hasattr(rows, "select") else rows

    def first(self, *args, **kwargs):
        for name in ("train_dataset", "eval_dataset"):
            kwargs[name] = few(kwargs.get(name))
        start(self, *args, **kwargs)

    def one_step(self, *_, **__):
        answer = train(self)
        record["loss"], record["trainer"] = answer.training_loss, type(self).__mro__[0].__name__
        (folder / "trial.json").write_text(json.dumps(record, default=str), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)

    transformers.Trainer.__init__, transformers.Trainer.train = first, one_step


def one_step(file: str, folder: str, model: str, data: str) -> int:
    """The process: run the script with a small model and few rows up to the end of its first step."""
    import transformers

    record: dict = {"said": []}
    place = Place(Path(folder), model)
    place.said = record["said"]
    replace_loading(place)
    replace_data(data, record["said"])
    replace_config(record, Path(folder))
    replace_trainer(record, Path(folder))
    transformers.utils.logging.disable_progress_bar()
    sys.argv = [file]
    sys.path.insert(0, str(Path(file).parent))
    try:
        runpy.run_path(file, run_name="__main__")
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def trial(text: str, near: Path, model: str, data: str) -> dict:
    """One step of a new script: its loss, and its settings as TRL read them.

    Raises:
        UserError: it fails, ends without training, or takes too long.
    """
    say(f"note: --check runs the new script in {near}, for one step on the CPU and {TRIAL_SECONDS} s at most")
    with tempfile.TemporaryDirectory() as folder:
        script, answer = Path(folder) / "migrated.py", Path(folder) / "trial.json"
        script.write_text(text, encoding="utf-8")
        data = str(Path(data).resolve()) if data else ""
        model = str(Path(model).resolve()) if model and Path(model).is_dir() else model or ""
        command = [sys.executable, __file__, ONE_STEP, str(script), folder, model, data]
        modules = os.pathsep.join(filter(None, [str(near.resolve()), os.environ.get("PYTHONPATH")]))
        end = script_end(command, near, TRIAL_SECONDS, CUDA_VISIBLE_DEVICES="", PYTHONPATH=modules)
        end = end or "it ended without a training step"
        need(answer.is_file(), f"--check: got {end}; expected one step; try the new script by hand")
        return json.loads(answer.read_text(encoding="utf-8"))
