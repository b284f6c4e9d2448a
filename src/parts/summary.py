"""summary.json and the lines at the end of a run."""

import json
from pathlib import Path

from parts.processes import world
from parts.settings import BaseConfig


def report(config: BaseConfig, summary: dict) -> None:
    """Write summary.json and print what a person wants to know at the end."""
    if world()[0] != 0:
        return
    folder = Path(config.output_dir)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False))
    if "eval_after" in summary:
        pairs = zip(summary["eval_before"]["examples"], summary["eval_after"]["examples"], strict=True)
        for before, after in pairs:
            prompt = before["prompt"] if isinstance(before["prompt"], str) else before["prompt"][-1]["content"]
            print(f"  {prompt[-60:]!r:16} before {before['completion'][-60:]!r:32} after {after['completion'][-60:]!r}")
        print(f"held-out accuracy {summary['accuracy_before']:.3f} -> {summary['accuracy_after']:.3f}", end=", ")
    print(f"{summary['steps']} steps in {summary['seconds']:.0f} s")
    print(f"curves {folder / 'curves.png'}\nmodel  {folder / 'final'}", flush=True)
