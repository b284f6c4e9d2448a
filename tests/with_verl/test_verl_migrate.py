"""Jobs of old versions that scripts/migrate.py wrote anew, composed with verl's own configuration."""

import json
import re
import shlex

import pytest
from conftest import ROOT, load_script

from parts.data.verl_composition import composition, missing_values

migrate = load_script("migrate")
FILES = ROOT / "tests" / "files" / "migrate"
JOBS = sorted(p for p in FILES.glob("verl_*.sh") if "recipe" not in p.name and "variables" not in p.name)
SAME = (
    "parsed_flags reward_model megatron lora_dapo geo_mean growing_arrays agent_arrays tools new_section "
    "stage_penalty vision_array megatron_ray docker two_stages"
).split()
PUBLIC = [p for p in sorted((FILES / "public").glob("verl_*.sh")) if p.stem.split("_", 2)[2] in SAME]


def words_of(job) -> dict[str, str]:
    """{override: its line} of a job, as its shell would pass them; without those set in a branch or to variables."""
    words = {}
    for word in [w for w in job.words if w.is_fixed and not w.in_branch]:
        is_quoted = job.text[word.start - 1 : word.start] in ("'", '"')  # the whole word, or parts of its value
        around, text = job.around(word.start), word.value
        if text and around and job.text[around[0] - 1] == '"':  # where \\" stands for a quote
            text = re.sub(r'\\(["\\$`])', r"\1", text)
        value = text and (text.strip() if is_quoted else "".join(shlex.split(text)))
        words[f"{word.sign}{word.key}" + f"={value}" * (value is not None)] = job.place(word.start)
    return words


def findings(file, tmp_path, capsys) -> tuple[list[str], list[str]]:
    """(What a new job is said to lack, what verl refuses of the rest)."""
    new, found = tmp_path / "new.sh", []
    migrate.main([str(file), "--from", f"verl=={file.stem.split('_')[1]}", "--out", str(new), "--json"])
    lost = [x["setting"] for x in json.loads(capsys.readouterr().out)["not_expressible"]]
    for job in migrate.ShellJob("new.sh", new.read_text(encoding="utf-8")).commands():
        words = words_of(job)
        words = {word: line for word, line in words.items() if not any(word.startswith(x.split("=")[0]) for x in lost)}
        open_keys = [word.key for word in job.words if job.place(word.start) not in words.values()]
        composed, refused = composition(words, "ppo_megatron_trainer" if "ppo_megatron" in job.text else "ppo_trainer")
        refused += missing_values(composed) if composed is not None else []
        found += [finding for finding in refused if not any(key in finding for key in open_keys)]
    return lost, found


@pytest.mark.parametrize("job", JOBS + PUBLIC, ids=lambda job: job.stem)
def test_a_new_job_composes(job, tmp_path, capsys):
    lost, found = findings(job, tmp_path, capsys)
    assert not [setting for setting in lost if not setting.endswith("loss_agg_mode=token-mean")] and not found


@pytest.mark.parametrize("name", ["0.2_low_probability", "0.2_search_agent", "0.3_off_policy_guidance"])
def test_the_rest_of_a_forks_job_composes(name, tmp_path, capsys):
    lost, found = findings(FILES / "public" / f"verl_{name}.sh", tmp_path, capsys)
    assert len(lost) > 1 and not found
