"""Where a run stands: the state that a resume needs, evaluations, what follows a step, stopping by a signal."""

import time

from parts.foundation.memory_used import forget_peak, memory_metrics
from parts.foundation.messages import say
from parts.foundation.processes import StopRequest
from parts.foundation.settings import BaseConfig
from parts.running.run_log import RunLog
from parts.running.summary import EXAMPLES, run_summary

EXAMPLE_KEYS = ("prompt", "completion", "score", "messages")  # of summary.json; the last of conversations only


def fresh_state(**own) -> dict:
    """What a checkpoint keeps of a run beside its networks, at step 0; `own` is what the program adds.

    `bad` counts non-finite updates in a row, `prompts` those taken from the stream, `pending` is the metrics of a step
    that is still to be evaluated, `seconds` the time of earlier sessions.
    """
    state = {"step": 0, **own, "bad": 0, "eval_before": None, "eval_after": None, "seconds": 0.0}
    return state | {"prompts": 0, "pending": None}


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps (0: never) happens after this one."""
    return bool(every) and step % every == 0


class Progress:
    """Keeps the state of a run, and does what surrounds its steps.

    Args:
        started: time.perf_counter() at the start of this session.
        save: writes a checkpoint of a state.
        evaluate: returns (metrics, samples) of the held-out prompts; None where there are none.
    """

    def __init__(self, config: BaseConfig, state: dict, started: float, log: RunLog, save, evaluate):
        self.config, self.state, self.started = config, state, started
        self.log, self.write_checkpoint, self.evaluate, self.stop = log, save, evaluate, StopRequest()

    def seconds(self) -> float:
        """Time of the run so far, earlier sessions included."""
        return self.state["seconds"] + time.perf_counter() - self.started

    def save(self) -> None:
        """Write a checkpoint, of step 0 none: it would keep the settings and the evaluation of what has failed."""
        if self.state["step"]:
            self.write_checkpoint({**self.state, "seconds": self.seconds()})

    def held_out(self, step: int) -> dict:
        """Metrics of the held-out prompts, and a few examples."""
        metrics, samples = self.evaluate()
        self.log.samples(step, "eval", samples)
        examples = [{k: s[k] for k in EXAMPLE_KEYS if k in s} for s in samples[:EXAMPLES]]
        return {"metrics": metrics, "examples": examples}

    def begin(self) -> None:
        """Evaluate before the first step; a resumed run may still owe its last step's evaluation."""
        if self.evaluate and self.state["eval_before"] is None:
            self.state["eval_before"] = self.held_out(0)
            self.log.metrics(0, self.state["eval_before"]["metrics"])
        if self.state["pending"]:
            self.log_pending()
        forget_peak()

    def log_pending(self) -> None:
        """Evaluate where it is time, and log the metrics of the step."""
        step, metrics = self.state["step"], self.state["pending"]
        if self.evaluate and (step == self.config.steps or is_due(step, self.config.eval_every)):
            self.state["eval_after"] = self.held_out(step)
            metrics |= self.state["eval_after"]["metrics"]
        self.log.metrics(step, metrics)
        self.state["pending"] = None

    def end_step(self, metrics: dict, samples: list[dict], prompts: int) -> int:
        """Evaluate, log and save after a step that leaves the stream of prompts at `prompts`.

        Returns:
            128 + n where signal n ends the run here, else 0.
        """
        config, step = self.config, self.state["step"] + 1
        self.state |= {"step": step, "prompts": prompts, "pending": metrics | memory_metrics()}
        self.log_pending()
        if is_due(step, config.sample_every):
            self.log.samples(step, "train", samples)
        if is_due(step, config.plot_every):
            self.log.plot()
        signum = self.stop.agreed()
        if signum or is_due(step, config.save_every) or step == config.steps:
            self.save()
        forget_peak()
        if not signum or step == config.steps:
            return 0
        self.log.plot()
        say(f"stopped by signal {signum} after step {step}; go on with --resume")
        return 128 + signum

    def summary(self) -> dict:
        """What summary.json says of the run."""
        return run_summary(self.config, self.state) | {"seconds": round(self.seconds(), 1)}

    def close(self) -> None:
        """Close the log, and put the earlier signal handlers back."""
        self.log.close()
        self.stop.restore()
