"""The class that scripts/migrate.py writes into a GRPO script of TRL 0.17, in one step of today's TRL.

Completions are given instead of sampled. What is expected is computed from them as TRL 0.17.0 does it
(trl/trainer/grpo_trainer.py: lines 655, 900, 984, 1082, 1128 and 1222).
"""

import ast
import copy
import json
import shutil
from statistics import mean, stdev
from types import SimpleNamespace

import pytest
from conftest import TINY_LM, load_script

pytestmark = pytest.mark.long

OLD = """from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig(
    f"{folder}/run",
    num_generations=2, per_device_train_batch_size=4, gradient_accumulation_steps=2, per_device_eval_batch_size=4,
    max_prompt_length=5, max_completion_length=8, reward_weights=[1.0, 0.5],
    max_steps=1, max_grad_norm=0, use_cpu=True, report_to="none",
)
trainer = GRPOTrainer(f"{folder}/model", [score, index], config, rows, eval_dataset=rows)
"""
END, OTHER_END, PAD = 2, 3, 0
LENGTHS = [2, 7, 3, 8, 1, 6, 4, 5]  # of the step's completions, in the order of sampling
COMPLETIONS = [[*range(40 + 9 * i, 39 + 9 * i + length), END] for i, length in enumerate(LENGTHS)]
COMPLETIONS[1][2] = COMPLETIONS[3][1] = OTHER_END
SCORES = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0]
REWARDS = [3.0, 1.5, 5.0, 1.5, 11.0, 4.5, 6.0, 8.5]  # the score, and half the index; None counts as 0
GROUPS = [REWARDS[i : i + 2] for i in range(0, 8, 2)]


def score(completions, **kwargs):
    return SCORES[: len(completions)]


def index(completions, **kwargs):
    return [i if i % 3 else None for i, _ in enumerate(completions)]


def one_step(folder, *without: str) -> SimpleNamespace:
    """Run the trainer of the migrated script for a step and an evaluation; `without`: methods that its class loses."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback

    step = SimpleNamespace(prompts=[], batches=[])
    shutil.copytree(TINY_LM, folder / "model")
    settings = json.loads((TINY_LM / "generation_config.json").read_text()) | {"eos_token_id": [END, OTHER_END]}
    (folder / "model" / "generation_config.json").write_text(json.dumps(settings))
    (folder / "old.py").write_text(OLD)
    assert load_script("migrate").main([f"{folder}/old.py", "--from=trl==0.17", f"--out={folder}/new.py"]) == 0
    script = ast.parse((folder / "new.py").read_text())
    (added,) = [node for node in script.body if isinstance(node, ast.ClassDef)]
    added.body = [node for node in added.body if not any(name in ast.unparse(node)[:40] for name in without)]
    rows = Dataset.from_list([{"prompt": f"the word {word}"} for word in "abcd"])
    names = {"folder": folder, "score": score, "index": index, "rows": rows}
    exec(compile(script, "new.py", "exec"), names)
    trainer = names["trainer"]

    def generate(input_ids, attention_mask, generation_config, **kwargs):
        step.prompts += [row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)]
        step.end = generation_config.eos_token_id
        padded = [ids + [PAD] * (8 - len(ids)) for ids in COMPLETIONS[: len(input_ids)]]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)

    def compute_loss(model, inputs, loss=trainer._compute_loss):
        pairs = zip(inputs["completion_ids"], inputs["completion_mask"], strict=True)
        step.batches.append([ids[mask.bool()].tolist() for ids, mask in pairs])
        return loss(model, inputs)

    class Gradient(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            step.gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    step.reference = copy.deepcopy(trainer.model.state_dict())
    with torch.no_grad():  # so that the KL is not 0
        for number, parameter in enumerate(trainer.model.parameters()):
            parameter.add_(0.02 * torch.sin(torch.arange(parameter.numel()) * 1.7 + number).view_as(parameter))
    step.policy = copy.deepcopy(trainer.model.state_dict())
    trainer.model.generate, trainer._compute_loss = generate, compute_loss
    trainer.add_callback(Gradient())
    trainer.train()
    step.spread = next(row["reward_std"] for row in trainer.state.log_history if "reward_std" in row)
    step.eval_spread = trainer.evaluate()["eval_reward_std"]
    return step


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> SimpleNamespace:
    return one_step(tmp_path_factory.mktemp("step"))


@pytest.fixture(scope="module")
def plain_step(tmp_path_factory) -> SimpleNamespace:
    """The same without the methods."""
    return one_step(tmp_path_factory.mktemp("plain"), "def _", "eos_token_ids")


def old_gradient(step):
    """That of the mean over the step's two micro-batches, of the mean over the tokens of each."""
    import torch
    from transformers import AutoModelForCausalLM

    policy, reference = (AutoModelForCausalLM.from_pretrained(TINY_LM) for _ in range(2))
    policy.load_state_dict(step.policy)
    reference.load_state_dict(step.reference)

    def logprobs(model, row: int):
        prompt, completion = step.prompts[row], COMPLETIONS[row]
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        return torch.log_softmax(logits / 0.9, dim=-1).gather(1, torch.tensor(completion)[:, None])[:, 0]

    total = 0.0
    for rows in (range(4), range(4, 8)):
        losses = []
        for row in rows:
            group = GROUPS[row // 2]
            advantage = (REWARDS[row] - mean(group)) / (stdev(group) + 1e-4)
            new = logprobs(policy, row)
            gap = logprobs(reference, row).detach() - new
            losses.append(-torch.exp(new - new.detach()) * advantage + 0.04 * (torch.exp(gap) - gap - 1))
        total = total + torch.cat(losses).mean() / 2
    return torch.cat([x.flatten() for x in torch.autograd.grad(total, [*policy.parameters()])])


def test_micro_batches_are_whole_groups_and_the_gradient_is_that_of_the_old_loss(step, tmp_path):
    assert step.batches[:2] == [COMPLETIONS[:4], COMPLETIONS[4:]]
    expected = old_gradient(step)
    shuffled = one_step(tmp_path, "_prepare_inputs").gradient
    gap, gap_if_shuffled = ((gradient - expected).norm() / expected.norm() for gradient in (step.gradient, shuffled))
    assert gap < 1e-6 and gap_if_shuffled > 0.01


def test_the_tokenizers_end_token_alone_ends_a_completion(step, plain_step):
    assert step.end == [END] and plain_step.end == [END, OTHER_END]
    assert COMPLETIONS[1][:3] in plain_step.batches[0] + plain_step.batches[1]  # it ends with the other


def test_the_metric_is_the_mean_of_the_groups_deviations(step, plain_step):
    assert step.spread == pytest.approx(mean(map(stdev, GROUPS)), abs=1e-5)
    assert step.eval_spread == pytest.approx(mean(map(stdev, GROUPS[:2])), abs=1e-5)
    assert plain_step.spread == pytest.approx(stdev(REWARDS), abs=1e-5)


def test_prompts_keep_their_end(step, plain_step):
    assert {len(prompt) for prompt in step.prompts} == {5} and len(plain_step.prompts[0]) > 5
    assert step.prompts == [prompt[-5:] for prompt in plain_step.prompts]
