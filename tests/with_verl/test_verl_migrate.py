"""Jobs of old versions that scripts/migrate.py wrote anew, composed with verl's own configuration."""

import json

import pytest
from conftest import ROOT, load_script

migrate = load_script("migrate")
FILES = ROOT / "tests" / "files" / "migrate"
JOBS = sorted(p for p in FILES.glob("verl_*.sh") if "recipe" not in p.name and "variables" not in p.name)
SAME = "reward_model lora_dapo tools vision_array docker".split()  # jobs without keys of a fork
PUBLIC = [p for p in sorted((FILES / "public").glob("verl_*.sh")) if p.stem.split("_", 2)[2] in SAME]


@pytest.mark.parametrize("job", JOBS + PUBLIC, ids=lambda job: job.stem)
def test_a_new_job_composes(job, capsys):
    migrate.main([str(job), "--from", f"verl=={job.stem.split('_')[1]}", "--json"])
    said = capsys.readouterr().out
    lost = [x["setting"] for x in json.loads(said)["not_expressible"]]
    assert not [setting for setting in lost if not setting.endswith("loss_agg_mode=token-mean")]
    assert "composed with verl's own configuration" in said


def test_the_rest_of_a_forks_job_composes(capsys):
    migrate.main([str(FILES / "public" / "verl_0.2_search_agent.sh"), "--from", "verl==0.2", "--json"])
    lost = [x["setting"] for x in json.loads(capsys.readouterr().out)["not_expressible"]]
    assert len(lost) > 1 and "the new job" not in lost
