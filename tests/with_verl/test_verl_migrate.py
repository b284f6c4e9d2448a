"""Jobs of old versions that scripts/migrate.py wrote anew, composed with verl's own configuration."""

import json
import re
import shlex

import pytest
from conftest import ROOT, load_script

migrate, launcher = load_script("migrate"), load_script("verl_train")
FILES = ROOT / "tests" / "files" / "migrate"
JOBS = sorted(p for p in FILES.glob("verl_*.sh") if "recipe" not in p.name and "variables" not in p.name)
OF_A_FORK = FILES / "public" / "verl_0.2_search_agent.sh"
SAME = "reward_model lora_dapo tools vision_array docker".split()  # jobs without keys of a fork
PUBLIC = [p for p in sorted((FILES / "public").glob("verl_*.sh")) if p.stem.split("_", 2)[2] in SAME]


def value_of(job, word) -> str | None:
    """A word's value as the shell hands it over."""
    is_quoted = job.text[word.start - 1 : word.start] in ("'", '"')  # around the word, not its value
    around, text = job.around(word.start), word.known
    if text and around and job.text[around[0] - 1] == '"':  # in which \" is a quote
        text = re.sub(r'\\(["\\$`])', r"\1", text)
    return (text.strip() if is_quoted else "".join(shlex.split(text))) if word.value is not None else None


@pytest.mark.parametrize("file", [*JOBS, *PUBLIC, OF_A_FORK], ids=lambda file: file.stem)
def test_a_new_job_composes(file, tmp_path, capsys):
    """All words but those that are refused, set in a branch or to variables."""
    out = tmp_path / file.name
    migrate.main([str(file), "--from", f"verl=={file.stem.split('_')[1]}", "--json", "--out", str(out)])
    lost = [x["setting"] for x in json.loads(capsys.readouterr().out)["not_expressible"]]
    others = [setting for setting in lost if not setting.endswith("loss_agg_mode=token-mean")]
    assert bool(others) == (file == OF_A_FORK)
    jobs = migrate.ShellJob(file.name, out.read_text()).commands()
    for job in [job for job in jobs if not migrate.other_mains(job)]:
        refused = {setting.partition("=")[0] for setting in lost}
        words = [w for w in job.words if w.is_fixed and not w.in_branch and w.key not in refused]
        keys = {w.key for w in job.words} - {w.key for w in words}
        written = {w.sign + w.key: value_of(job, w) for w in words}  # the last of a key wins
        overrides = [launcher.Override(key, value, "new", is_written=True) for key, value in written.items()]
        composed, findings = launcher.compose_config(overrides)
        findings += launcher.missing_values(composed) if composed is not None else []
        assert [finding for finding in findings if not any(key in finding for key in keys)] == []
