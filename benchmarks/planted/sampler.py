"""ppo_train.py with a sampler that holds its own weights, as a rollout server does."""

import copy
import importlib.util
import sys

import torch

EVERY, SHIFT = 1, 0.0
spec = importlib.util.spec_from_file_location("ppo_train", "PPO_TRAIN")
ppo_train = sys.modules["ppo_train"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ppo_train)
start = ppo_train.HFEngine.__init__


def with_weights(engine, config, models):
    engine.trained = models.policy
    models = copy.copy(models)
    models.policy = copy.deepcopy(models.policy)
    start(engine, config, models)


def sync(engine, step=0):
    if step % EVERY:
        return
    with torch.no_grad():
        for held, new in zip(engine.models.policy.parameters(), engine.trained.parameters(), strict=True):
            held.copy_(new * (1 + SHIFT * torch.randn_like(new)))


ppo_train.HFEngine.__init__, ppo_train.HFEngine.sync = with_weights, sync
sys.exit(ppo_train.main())
