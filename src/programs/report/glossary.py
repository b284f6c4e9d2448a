"""What the metrics mean: made from references/metrics.md by tools/make_glossary.py."""

# group, then each metric with its meaning, + what is healthy, ! what is a warning
GLOSSARY_TEXT = """# Reward
reward/mean
  mean score of the step's completions: the weighted sum of the reward functions, before the end-token penalty and KL;
    in units of the reward
  + rises
  ! flat: read samples.jsonl; if no completion ever scores, there is nothing to reinforce
reward/std
  standard deviation of those scores
  + above 0
  ! 0: all completions scored the same, so only the KL term teaches
reward/zero_std_frac
  with groups: share of those sampled, replaced ones included, whose completions all score the same before penalties
    and KL (gdpo: in every reward), so that comparing them teaches nothing; they cost no pass through the network
    where they cannot change the gradient
  + well below 1
  ! near 1: the prompts are too hard or too easy, the step is wasted; other prompts, a larger group_size, or a finer
    reward. At pass rate p and group size G, p^G + (1 − p)^G is to be expected. TRL's own frac_reward_zero_std reads
    lower: rounding hides equal scores from it
reward/<function>
  unweighted mean of one reward function over the completions where it is not None; absent where it is None for all
  + rises
  ! one rises while another falls: weigh them anew
# KL
kl/ref
  KL(policy ‖ reference), nats per response token, by kl_estimator (k3_ratio: k3) on the step's own samples; k1 may
    dip below 0
  + 0 at step 1, then grows slowly
  ! not 0 at step 1: the reference is not the initial policy; a jump: the policy leaves the reference faster than
    reward explains
kl/ref_completion
  the same, summed over a completion: nats per completion, the unit of kl_target
  + near kl_target where one is set
  ! far above the target for long: a higher kl_coef
kl/coef
  the kl_coef this step used; changes only with kl_target
  + settles
  ! grows without end: the target is out of reach
kl/teacher
  distillation: KL(student ‖ teacher), nats per sampled token: over the vocabulary, or by k1 with policy_gradient and
    servers
  + falls
  ! rises: a lower lr
kl/approx
  KL(policy before the step ‖ policy during it), nats per response token, by k3; mean over the step's updates, each
    measured just before it is applied
  + small; 0 with one update per step
  ! rising over steps: a lower lr or fewer ppo_epochs; target_kl ends such a step
# Policy
policy/loss
  the loss with its KL term, summed as aggregation says, without entropy bonus, mean over updates
  + its size means nothing: at ratio 1 PPO's is minus the mean advantage, and whitening makes that 0
  ! not finite
policy/clip_frac
  share of trained tokens at which a bound of the loss changed it (clip_cov, kl_cov: share that was chosen)
  + 0 with one update per step, which is no fault; a few per cent else
  ! near 1: updates far too large
policy/entropy
  entropy of the sampling distribution (after temperature), nats per token of the rows that train; without a critic
    these are the groups of unequal score
  + changes slowly
  ! sudden rise or collapse
policy/teacher_entropy
  distillation: entropy of the teacher on the student's tokens, nats per token
  + near policy/entropy late in the run
  ! student's far below: mode seeking; objective forward_kl or jsd
policy/lost_mass
  distillation, only where the student has more rows than its tokenizer has tokens: its probability on these rows;
    they are left out of sampling and loss here
  + below 1e-3
  ! high: other samplers may draw tokens without text; drop the rows with resize_token_embeddings
policy/overlap
  distillation: share of the student's 8 likeliest tokens that are among the teacher's 8, at some 256 tokens of each
    piece
  + high, or rising
  ! low and flat: templates differ, or fine-tune on the teacher's texts first
policy/ratio_max
  largest ratio of new to old probability of any response token in the step
  + exactly 1 with one update per step; above 1 else, for rare tokens well above
  ! far from 1 at a step's first update: a bug, scripts/selfcheck.py finds it; TRL warns at 2.0 or 0.1 for the mean
    ratio
# Sampler and trainer
mismatch/weight_mean
  mean of w, before any bound, over the tokens of rows that can change the gradient
  + 1 up to rounding with rollout_engine hf; 0.5 to 2 else
  ! outside: sampler and trainer do not agree; precision, template or stale weights
mismatch/kl
  KL(sampler ‖ trainer), nats per trained token, by k3
  + below 1e-3
  ! above 0.01, or high at step 1: a bug in template, temperature or precision
mismatch/cut_frac
  share of trained tokens whose w was cut or set to 0 by mismatch; 0 where nothing is corrected
  + a few per cent at most
  ! rising: the engines drift apart; seq_mask with long completions drops many, as its w is a product over tokens
# Value
value/loss
  half the clipped squared error of the value against the return, per response token, in units of reward squared
  + falls, then follows the spread of returns
  ! grows while reward stands: a lower critic_lr
value/explained_variance
  1 − Var[return − value] / Var[return] over response tokens, with the values from before the update
  + 0 at step 1 (the value head starts at 0), then toward 1
  ! near 0 or below it after the first steps: the critic is no better than a constant; more minibatches,
    critic_warmup_steps, another critic_lr. Near 0 is no fault once nearly all completions score alike, or where they
    are wrong by chance
# Rollout
rollout/length_mean
  sampled tokens per completion, end token included; of a conversation those of all its answers, without tools'
    results and replies
  + moves slowly
  ! runs to max_new_tokens, or collapses to a few tokens: read samples.jsonl
rollout/truncated_frac
  share of completions that hit max_new_tokens without an end token; of conversations with such an answer
  + low
  ! rising: a higher max_new_tokens or missing_eos_penalty
rollout/turns_mean
  with an environment: answers per conversation
  + as many as the task needs
  ! 1 from the start: no call is read, or the first answer ends it; always max_turns: see rollout/limit_frac
rollout/limit_frac
  with an environment: share of conversations that ended at max_turns or max_conversation_tokens, not by an answer or
    a reply
  + low
  ! rising: a higher limit, or an environment that ends sooner
rollout/samples
  GRPO, and others with dynamic_sampling: completions sampled in this step, those of replaced groups included
  + near batch_size; with GRPO the completions of a rollout
  ! batch_size × (1 + max_refills): too few groups differ
rollout/rounds
  with dynamic_sampling: rounds in which they were sampled
  + 1 or 2
  ! 1 + max_refills: a higher max_oversampling, or other prompts
rollout/unused
  with dynamic_sampling: those of groups that differ, but that the batch had no place for
  + 0 without max_oversampling, else small beside batch_size
  ! a large share: a lower max_oversampling
rollout/tokens_per_s
  sampled tokens of all processes per second of sampling
  + steady
  ! falls: longer completions, or a busy machine
rollout/logprob_gap_max
  largest difference between the sampler's and the trainer's log-prob of a token, nats; absent where a step has one
    update and no reference
  + rounding: below 1e-4 in fp32; with NeMo-RL's limit of 1.02 for the mean probability ratio, 0.02 on average in bf16
  ! large at step 1: template, temperature or precision differ between sampler and trainer; NeMo-RL warns at 1.05
# Prompts
prompts/seen_frac
  share of prompts that have been sampled
  + rises to 1
prompts/below_frac
  share with a running pass rate below LOW
  + falls
  ! near 1: no prompt gets full marks; scripts/warm_start.py, or a first reward that pays 1 for a right answer
prompts/within_frac
  share from LOW to HIGH: those that are drawn at each of their turns, beside unseen ones
  + the larger, the more the data teach
  ! near 0 with all seen: nothing is left to learn here, or nothing can be
prompts/above_frac
  share above HIGH
  + rises
  ! near 1: harder prompts
# Tools
tool/calls_mean
  tool calls per conversation, those that cannot be read or made included
  + leaves 0 where tools help
  ! 0: the model does not know the form of calls; read pieces in samples.jsonl
tool/failure_frac
  share of calls that came to an error: not readable, no such tool, raised, or no answer in tool_timeout
  + falls
  ! stays near 1: another tool_format, or a broken tool
tool/seconds
  seconds in tools and replies per conversation; those of a batch run side by side, so a step waits less than the sum
  + small beside time/rollout
  ! near tool_timeout: a tool hangs
# Optimization
optim/lr
  learning rate of the policy in this step
  + follows lr_schedule
optim/grad_norm
  L2 norm of the policy's gradient before clipping, mean over updates; 0 during critic warm-up
  + steady
  ! always far above max_grad_norm: every update is clipped, a lower lr
optim/critic_grad_norm
  the same of the critic
  + steady
  ! as above, with critic_lr
optim/updates
  optimizer updates applied in this step
  + ppo_epochs × minibatches
  ! fewer: target_kl ended the step, or some were skipped
optim/skipped_updates
  updates of this step left out because a gradient was not finite
  + 0; in fp16 now and then, while the loss scale settles
  ! several in a row: max_bad_updates of them end the run
# Time
time/rollout
  seconds of sampling
  + the largest of the three with a real model: about 80 % of RL time is generation
time/step
  GRPO: seconds of the optimizer step, sampling and rewards of its rollout included (TRL's step_time)
  + steady
time/teacher
  distillation: seconds of asking server teachers
  + small beside time/rollout
  ! the server is the bottleneck
time/reward
  seconds in the reward functions, after sampling: those that score_while_sampling hides are not counted
  + small
  ! beside time/rollout: make the functions async, or cheaper
time/update
  seconds for old and reference log-probs, values, and all updates
  + steady
# Memory
memory/gpu_peak_gib
  the most that PyTorch's tensors took of a GPU during the step (without the evaluation that follows it), cached
    blocks not counted; vLLM's share of the GPU is partly outside of it
  + steady; moves with the completions' lengths
  ! rises in even steps while lengths do not: something keeps tensors, such as a metric with its graph
memory/process_gib
  resident memory of the process at the end of the step, on Linux
  + rises over the first steps, then steady
  ! rises in even steps: a reward function or an environment that keeps what it saw
# Held-out evaluation
eval/accuracy
  share of rows with full marks, 1 or more, from the first reward function; from an environment's get_reward where it
    has one
  + rises with reward/mean
  ! reward/mean rises and this does not: the reward is gamed, or the training prompts are learnt by heart
eval/accuracy_low
  lower end of its 95 % interval
  + above the upper end of before
  ! the intervals of before and after overlap: more held-out prompts, or a higher --eval_rows
eval/accuracy_high
  upper end
eval/score
  mean score, as reward/mean
  + rises
eval/rows
  rows evaluated, which the interval of eval/accuracy comes from
  + several hundred
  ! few: 30 rows leave ± 0.17 around one half
eval/trained_rows
  rows evaluated whose prompt also trains, in another case or spacing too; absent where there are none
  + absent
  ! present: the accuracy is inflated
eval/length_mean
  tokens per completion, end token included
  + moves slowly
  ! as rollout/length_mean
eval/turns_mean
  with an environment: answers per conversation
  ! as rollout/turns_mean
eval/calls_mean
  with an environment: tool calls per conversation
  ! as tool/calls_mean
eval/<function>
  unweighted mean of one reward function over the rows where it is not None
  + rises
eval/reverse_kl
  distillation: KL(student ‖ teacher) per token on --eval_samples own samples of each held-out prompt (of the one-page
    trainer: one), the same draws each time; k3 with servers
  + falls
  ! flat while kl/teacher falls: too few prompts
eval/reverse_kl_low
  distillation: lower end of its 95% interval over prompts, by bootstrap
eval/reverse_kl_high
  distillation: upper end
  + below the lower end of before
  ! the intervals of before and after overlap: more held-out prompts, or --eval_samples
eval/reverse_kl_top
  distillation: share of it that the largest completion carries, from 8 completions on
  + small
  ! above 1/3: the mean is about that one; --eval_samples 4
eval/entropy
  distillation: entropy of the student there
  + changes slowly
  ! collapse
eval/teacher_entropy
  distillation: entropy of the teacher there
eval/overlap
  distillation: as policy/overlap, there
  + high, or rising
  ! low and flat
"""
