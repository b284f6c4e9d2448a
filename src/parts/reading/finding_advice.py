"""Findings: cause, remedy, source."""

OURSELVES = "our heuristic: "
IF_CUT = "if completions are cut"  # advice that ends so is left out where the log shows that none are
# finding: (likely cause, what to change, source)
ADVICE = {
    "not-finite": (
        "an update too large, a log-prob of -inf (a token the policy cannot sample), or fp16 overflow",
        ["lower {lr}", "{precision}", "keep {grad_clip} at 1", "go on from a checkpoint before this step"],
        "definition; unsloth#3006, verl#2505",
    ),
    "constant-reward": (
        "the function pays every completion the same (a placeholder, answers not extracted, a wrong column, a number "
        "compared with a text, an exception turned into a constant), or the model is never, or always, right; the log "
        "cannot tell which, the first three steps do",
        [
            "read the function {reward}, and completions beside their scores (samples.jsonl)",
            "score gold answers without a model: scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA; "
            "where they have no full marks the function is at fault: mend it",
            "where they have, the same with --model MODEL says how often the model is right; near 0: easier prompts, "
            "partial credit, or a warm start (scripts/warm_start.py); near 1: harder prompts",
            "raise {length} " + IF_CUT,
            "then begin anew from the first model, no resume; a loss near 0 stays normal, a gradient of 0 does not",
        ],
        "definition: equal scores give advantage 0; open-r1#255, verl#3024, trl#5697",
    ),
    "no-signal": (
        "most groups score all alike, so their advantages are 0 and only the rest of the batch teaches",
        ["prompts that the model solves sometimes", "raise {group}", "{filter}", "a finer reward (partial credit)"],
        "forecast: binomial; DAPO (Yu 2025), section 3.2; limit 0.8: "
        + OURSELVES
        + "under a fifth of the batch teaches",
    ),
    "group-size-1": (
        "an advantage relative to the group has nothing to compare one completion with: it is 0, or the raw score",
        ["raise {group} to 8 or more", "or use an estimator without groups (PPO with a critic, ReMax, REINFORCE++)"],
        "definition; prime-rl docs/training.md advises at least 8",
    ),
    "cold-sampling": (
        "sampling is nearly greedy: completions of a prompt hardly differ, so neither do their scores",
        ["raise {temperature} to 1.0, also for models whose card advises less for use"],
        "definition (entropy of the sampling distribution); limits 0.2 and 0.01 nats: "
        + OURSELVES
        + "nearly every token has one choice",
    ),
    "truncation": (
        "completions hit the length limit before their end token: the score judges the limit, not the answer",
        ["raise {length}", "shorten what the prompt asks for", "{overlong}"],
        "TRL completions/clipped_ratio; trl#5697; limit 0.2: " + OURSELVES + "one score in five is about the limit",
    ),
    "paid-unfinished": (
        "the reward finds the answer and pays whatever stands behind it, so nothing teaches the model to stop, and a "
        "larger limit makes longer texts",
        [
            "read the ends of paid completions",
            "pay only where nothing follows the answer",
            "{overlong}",
        ],
        "counting: with scores up to 1, at least mean + share cut - 1 are both; limits 0.2 and half of either: "
        + OURSELVES
        + "then the two go together",
    ),
    "no-tool-calls": (
        "the environment has tools and the model calls none: it does not know them, writes calls in a form that is not "
        "read, or has no need of them; what it never does cannot be paid",
        [
            "read what it writes: pieces in samples.jsonl",
            "an instruct model that was trained on tools, or one that was shown calls (SFT)",
            "{tool_form}, where it writes calls in another form",
            "say in the prompt that there are tools, and when to call them",
        ],
        "definition: an answer that is never sampled gets no gradient",
    ),
    "tool-failures": (
        "most calls come to an error: they cannot be read, name no tool, have wrong arguments, or the tool raises or "
        "gives no answer in time",
        [
            "read the errors: messages of the role tool in samples.jsonl",
            "{tool_form}, where none can be read",
            "arguments with plain types, each described in the docstring",
            "{tool_time}, where they say that there was no answer",
        ],
        OURSELVES + "every second call",
    ),
    "turn-limit": (
        "conversations do not come to their end: too few turns or tokens, an environment that never ends one, or a "
        "model that goes on calling",
        ["raise {turns}", "an environment that ends with the task (a reply of None)", "pay what ends early"],
        OURSELVES + "most returns are of conversations that were broken off",
    ),
    "slow-tools": (
        "a step waits for tools: those of a batch run side by side, so it takes at least as long as a conversation "
        "waits on average",
        ["{tool_time}", "a cheaper tool, or one whose work is done by other processes"],
        OURSELVES + "three tenths of the time, as of rewards",
    ),
    "length-collapse": (
        "short completions pay as well as long ones, or an update destroyed the policy",
        [
            "read completions: is the answer still there?",
            "a reward for the answer, not for brevity; check length penalties",
            "lower {lr}",
            "raise {kl}",
        ],
        OURSELVES + "half the starting length, and the held-out figure did not gain by it",
    ),
    "length-runaway": (
        "length itself pays (a reward that grows with it, or a loss averaged per completion, which hardly punishes "
        "long wrong answers), or the end token is forgotten",
        [
            "look for a reward that grows with length",
            "{overlong}",
            "aggregate the loss over tokens (DAPO) or by a constant (Dr. GRPO)",
        ],
        "Dr. GRPO (Liu 2025), section 3.1, on the length bias; limit 1.5: "
        + OURSELVES
        + "half as long again without a held-out gain",
    ),
    "repetition": (
        "completions repeat themselves: degenerate text that the reward does not punish, or pays by length",
        ["add a repetition penalty to the reward", "lower {lr}", "raise {kl}", "read the samples"],
        OURSELVES + "over half of the 6-character pieces of a completion are repeats; prose stays below a third",
    ),
    "entropy-collapse": (
        "the policy became nearly deterministic before the task was solved, so samples no longer differ",
        [
            "raise {clip_high} to 0.28 (no effect with one update per rollout)",
            "lower {lr}",
            "a small {entropy} (0.001)",
            "prompts that are not yet settled",
        ],
        "verl docs/algo/entropy.md: reward is about -a exp(entropy) + b, so a fall must buy score; limit a fifth: "
        + OURSELVES
        + "an e-fold and more",
    ),
    "entropy-explosion": (
        "the policy drifts toward noise: entropy bonus too strong, updates too large, or tokens that the trainer "
        "thinks impossible",
        ["lower {entropy}", "lower {lr}", "raise {kl}", "check sampler and trainer agree (sampler-mismatch)"],
        "verl docs/algo/entropy.md (sudden rise); limits 2 and 0.2 nats: "
        + OURSELVES
        + "doubled without a gain in score",
    ),
    "reference-differs": (
        "the reference is not the initial policy: another checkpoint, adapters that are not off, dropout, or precision",
        ["load the reference from the same weights", "compare both models' log-probs of one text"],
        "by construction: KL of a policy to itself is 0; limit 0.01 nats: "
        + OURSELVES
        + "bf16 rounding stays below it",
    ),
    "kl-runaway": (
        "the policy leaves the reference faster than the score explains: over-optimised reward or updates too large",
        ["raise {kl}", "lower {lr}", "end at the checkpoint with the best held-out score"],
        "Gao 2022, scaling laws for reward over-optimisation; limit 0.3 nats a token: "
        + OURSELVES
        + "the circulating 0.5 has no source either",
    ),
    "ratio-first-update": (
        "with one update per rollout old and new policy are the same weights, so the ratio is 1: old log-probs come "
        "from elsewhere (sampler, other temperature, dropout, padding, precision)",
        ["run scripts/selfcheck.py", "compute old log-probs with the trainer's own forward pass, dropout off"],
        "by construction; verl#2996, verl#6280 (micro-batch sizes that differ)",
    ),
    "sampler-mismatch": (
        "sampler and trainer give the same tokens different probabilities: temperature or top-p applied on one side, "
        "stale weights, chat template, or precision",
        [
            "top-p 1 and top-k off",
            "the same {temperature} on both sides",
            "check that weights reach the sampler after every step",
            "{mismatch}",
            "the same precision on both sides",
        ],
        "NeMo-RL docs/guides/grpo.md and adding-new-models.md (error factor 1.05, KL 0.001 to 0.01); "
        "verl docs/algo/rollout_corr.md (weights)",
    ),
    "stale-sampler": (
        "the sampler keeps old weights, wholly or in part, while the trainer moves away from them: it trains on what "
        "the policy no longer says, and nothing that is learnt shows",
        [
            "compare the weights of both after a copy: --check_sync of our trainers names the tensors that differ",
            "another version of vLLM, or the policy itself as sampler for some steps, to see whether the score moves",
        ],
        "allenai/open-instruct#1473; five times the start, and 0.001 nats at least: "
        + OURSELVES
        + "kernels differ less",
    ),
    "critic-useless": (
        "the critic predicts returns no better than a constant, and below 0 worse, so that advantages are noisier than "
        "without it: too few updates for each rollout, too little warm-up, a learning rate that is too low (stays near "
        "0) or too high (far below 0), a value clip that is small beside the scores, or returns that depend on nothing "
        "it sees (prompts equally hard, answers wrong by chance)",
        [
            "more updates of the critic for each rollout: {critic_updates}",
            "{critic_warmup}",
            "change {critic_lr} (near 0: three times higher; far below 0: three to ten times lower)",
            "where scores are well above 1: {value_clip}, or scores scaled to at most 1",
            "a larger {batch}; prompts that are not all equally hard",
            "or a method without a critic: {critic_free}",
        ],
        "definition of explained variance: a constant has 0, and below 0 the error varies more than the returns; "
        "NeMo-RL docs/guides/ppo.md; benchmarks/README.md, the demo's critic; limit 0.03: "
        + OURSELVES
        + "it takes 1.5 % off the scatter of the returns",
    ),
    "gradient-spikes": (
        "single batches with far larger gradients: rare tokens with extreme ratios, very long completions, few scores "
        "that differ",
        [
            "keep {grad_clip} at 1 or lower it",
            "lower {lr}",
            "a larger {batch}",
            "look at the completions of these steps",
        ],
        OURSELVES + "ten times the median of the 20 steps before, and above 1, the usual clip",
    ),
    "lr-high": (
        "updates too large: the policy was pushed to where its samples no longer score",
        ["lower {lr} by 3 to 10 times", "fewer updates per rollout: {reuse}", "{target}", "go back to a checkpoint"],
        "Spinning Up's PPO ends an update at KL 0.015; limits 0.1 nats and a clip fraction of 0.3: "
        + OURSELVES
        + "several times beyond it",
    ),
    "score-collapse": (
        "the policy lost what it could do: updates too large, a reward that changed, or a mismatch that grew",
        ["lower {lr}", "raise {kl}", "go back to the best checkpoint", "look at which figure moved first with --plot"],
        OURSELVES + "below half of the best stretch of the run",
    ),
    "lr-low": (
        "scores differ, yet the policy hardly moves: learning rate too low, or weights in bf16, which swallow updates "
        "smaller than 1/256 of a weight",
        ["raise {lr} by 3 to 10 times (LoRA: about 10 times that of full training)", "keep trained weights in float32"],
        "TRL lora_without_regret.md; limits 1e-4 nats and 1 % of entropy: "
        + OURSELVES
        + "no change visible in samples",
    ),
    "lr-zero": (
        "the learning rate is 0: a schedule that has ended, or too few total steps for its warm-up",
        ["set {lr}", "check the schedule's total number of steps"],
        "definition",
    ),
    "held-out-trains": (
        "the run learns these prompts by heart: what their held-out figure gains says nothing about others",
        [
            "hold prompts out: python scripts/data_loader.py FILE --split 0.1 --out train.jsonl",
            "then begin anew from the first model with --data train.jsonl --eval_data train.eval.jsonl",
        ],
        "definition of a held-out set",
    ),
    "reward-hacking": (
        "the policy earns score without getting better at the task",
        [
            "read high-scoring completions",
            "lower the weight of the part that rises, or make it pay only beside a right answer",
            "raise {kl}",
            "keep the checkpoint with the best held-out figure",
        ],
        "Gao 2022, scaling laws for reward over-optimisation; definition",
    ),
    "format-only": (
        "the format is learnt and full; the answers are not getting better",
        [
            "lower the format's weight, or pay it only beside a right answer",
            "easier prompts or a stronger start, so that right answers occur",
            "{group} larger, so that they occur in a group",
        ],
        "open-r1#255, trl#3452; limits 0.9 and 10 steps: " + OURSELVES + "what can still be gained there is noise",
    ),
    "memory-grows": (
        "something keeps what each step made: a metric with its graph, a reward function or an environment that "
        "remembers every completion, a cache without a bound",
        [
            "keep metrics as numbers (.item() or .detach())",
            "look for lists and dicts that your reward function or environment only adds to",
            "until it is found, stop and go on from a checkpoint: a new process starts low",
        ],
        OURSELVES + "a tenth, in six even stretches; what settles gains most at first",
    ),
    "loss-is-no-measure": (
        "at ratio 1 the surrogate's value is minus the mean advantage, about 0, while its gradient is not; a KL term "
        "lets it rise",
        ["nothing: watch reward, held-out score, length and entropy"],
        "trl#2703, trl#3452",
    ),
    "slow-reward": (
        "scoring takes a large share of the step",
        ["make the reward async or cheaper, or run it in several processes"],
        OURSELVES + "three tenths of the time",
    ),
    "solved": ("the task is learnt", ["harder prompts, or stop here"], "definition"),
    "short-run": (
        "too few steps for trends, so nothing is said about them",
        ["look again after 10 steps or more"],
        OURSELVES + "medians of fewer than 3 steps a side",
    ),
    "partial-log": ("lines could not be read", ["look at the lines named"], "definition"),
}
NOTES = {"loss-is-no-measure", "slow-reward", "slow-tools", "solved", "short-run", "partial-log"}
