"""--check: run one step of the new script in a separate process, on four rows and two layers of its model."""

import contextlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.data.rows import hub_is_reached, read_rows
from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.messages import need, say

TRIAL_SECONDS = 600
ONE_STEP = "--one_step"  # the first argument of the process
ROWS = 4
# Settings that replace the run's: one step, in one process on the CPU, without saving or reporting.
SMALL = (
    dict.fromkeys(["bf16", "fp16", "load_best_model_at_end", "push_to_hub", "use_vllm", "torch_compile"], False)
    | dict.fromkeys(["tf32", "deepspeed", "fsdp", "resume_from_checkpoint", "steps_per_generation"], None)
    | {"generation_batch_size": None, "use_liger_kernel": False, "use_cpu": True, "dataloader_num_workers": 0}
    | {"report_to": "none", "save_strategy": "no", "eval_strategy": "no"}
    | {"max_steps": 1, "gradient_accumulation_steps": 1}
)
QUIET = {"WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}


def cut_model(name: str, folder: str, notes: list[str]) -> str:
    """Save two layers of a model, with random weights, and its tokenizer; the embedded model replaces a missing one."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        local = {"local_files_only": not hub_is_reached()}
        config, tokenizer = AutoConfig.from_pretrained(name, **local), AutoTokenizer.from_pretrained(name, **local)
    except (OSError, ValueError):
        notes.append(f"{name} is not here: the embedded model replaces it; --model takes another")
        return EMBEDDED_MODEL
    text = config.get_text_config()
    layers, text.num_hidden_layers = text.num_hidden_layers, min(2, text.num_hidden_layers)
    for key, value in vars(text).items():
        if isinstance(value, list) and len(value) == layers:
            setattr(text, key, value[: text.num_hidden_layers])
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def replace_loading(folder: str, model: str, notes: list[str]) -> None:
    """Make every from_pretrained load a cut-down copy of its model."""
    import transformers
    from transformers.models.auto.modeling_auto import _BaseAutoModelClass

    cuts = {EMBEDDED_MODEL: EMBEDDED_MODEL}

    def place_of(name: str) -> str:
        if name in cuts or name.startswith(folder):
            return cuts.get(name, name)
        name = model or name
        if name not in cuts:
            cuts[name] = name  # cut_model itself loads the original
            cuts[name] = cut_model(name, f"{folder}/cut{len(cuts)}", notes)
        return cuts[name]

    owners = [_BaseAutoModelClass, *_BaseAutoModelClass.__subclasses__()]  # each has its own from_pretrained
    owners += [getattr(transformers, f"Auto{name}") for name in ("Config", "Tokenizer", "Processor")]
    owners += [transformers.PreTrainedModel, transformers.GenerationConfig]
    for owner in [owner for owner in owners if "from_pretrained" in vars(owner)]:
        function = vars(owner)["from_pretrained"].__func__

        def load(cls, name, *args, function=function, **kwargs):
            for key in ("quantization_config", "device_map", "attn_implementation", "revision", "token"):
                kwargs.pop(key, None)
            return function(cls, place_of(str(name)), *args, **kwargs)

        owner.from_pretrained = classmethod(load)


def replace_training(record: dict, folder: str) -> None:
    """Record each config as the script makes it, cut it to one step of four rows, and exit after that step."""
    import transformers

    arguments, trainer = transformers.TrainingArguments, transformers.Trainer
    post_init, init, train = arguments.__post_init__, trainer.__init__, trainer.train

    def shrink(self):
        kinds, given = str | int | float | bool | list | dict | None, vars(self)
        record.setdefault(type(self).__name__, {k: v for k, v in given.items() if isinstance(v, kinds)})
        lengths = ("max_completion_length", "max_new_tokens", "response_length")
        values = SMALL | {"output_dir": f"{folder}/run"} | {n: min(given[n], 8) for n in lengths if given.get(n)}
        rows = getattr(self, "num_generations", min(ROWS, self.per_device_train_batch_size))
        values["per_device_train_batch_size"] = rows
        if re.search("8bit|paged", str(self.optim)):
            values["optim"] = "adamw_torch"
        given.update({name: value for name, value in values.items() if name in given})
        post_init(self)

    def init_with_few_rows(self, *args, **kwargs):
        for name in ("train_dataset", "eval_dataset"):
            rows = kwargs.get(name)
            kwargs[name] = rows.select(range(min(ROWS, len(rows)))) if hasattr(rows, "select") else rows
        init(self, *args, **kwargs)

    def train_one_step(self, *_, **__):
        record["loss"], record["trainer"] = train(self).training_loss, type(self).__name__
        Path(folder, "trial.json").write_text(json.dumps(record, default=str), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)

    arguments.__post_init__, trainer.__init__, trainer.train = shrink, init_with_few_rows, train_one_step


def one_step(file: str, folder: str, model: str, data: str) -> int:
    """What the trial process does: run the script with a small model and few rows until its first step ends."""
    import datasets
    import torch
    import transformers

    def load(*_, split=None, **__):
        rows = datasets.Dataset.from_list(read_rows(data))
        return rows if split else datasets.DatasetDict({"train": rows, "test": rows})

    record: dict = {"notes": []}
    torch.nn.Module.to = torch.nn.Module.cuda = lambda self, *_, **__: self  # it stays on the CPU
    replace_loading(folder, model, record["notes"])
    datasets.load_dataset = load if data else datasets.load_dataset
    replace_training(record, folder)
    transformers.utils.logging.disable_progress_bar()
    sys.argv = [file]
    runpy.run_path(file, run_name="__main__")
    return 0


def failure_of(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a command in a folder, with all that it starts; returns why it failed, or "" where it did not."""
    with tempfile.TemporaryFile("w+") as said:
        options = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL, "start_new_session": True}
        with subprocess.Popen(command, stdout=said, stderr=said, **options) as process:
            try:
                process.wait(TRIAL_SECONDS)
            except subprocess.TimeoutExpired:
                return f"it takes more than {TRIAL_SECONDS} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    places = re.findall(r'migrated\.py", (line \d+)', "\n".join(lines))[-1:]
    place = f" ({places[0]} of the new script)" if places else ""
    return (errors or lines)[-1] + place if lines and process.returncode else ""


def trial(text: str, home: Path, model: str, data: str) -> dict:
    """Run one step of the new script in the old one's folder; returns its loss and its settings as TRL read them.

    Raises:
        UserError: the script fails, ends without training, or takes too long.
    """
    say(f"note: --check runs the new script in {home}, for one step on the CPU and {TRIAL_SECONDS} s at most")
    with tempfile.TemporaryDirectory() as folder:
        script, answer = Path(folder) / "migrated.py", Path(folder) / "trial.json"
        script.write_text(text, encoding="utf-8")
        model, data = (str(Path(x).resolve()) if x and Path(x).exists() else x or "" for x in (model, data))
        modules = os.pathsep.join(filter(None, [str(home.resolve()), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, __file__, ONE_STEP, str(script), folder, model, data]
        end = failure_of(command, home, os.environ | QUIET | {"PYTHONPATH": modules})
        end = end or "it ended without a training step"
        need(answer.is_file(), f"--check: got {end}; expected one step; try --data FILE, or the new script by hand")
        return json.loads(answer.read_text(encoding="utf-8"))
