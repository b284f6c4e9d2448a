"""Faults reported at a run's end, from its last steps and its held-out figures."""

import statistics

LAST = 3  # steps at the end that are judged, fewer in a run as short
KL_LOST = 10.0  # nats a token; an even choice among 22,000 tokens has an entropy of 10


def faults_at_end(rows: list[dict], summary: dict, rate: str) -> list[str]:
    """What went wrong, a clause each, by rows of metrics.jsonl and held-out figures; empty where nothing is certain."""

    def last(name: str) -> list[float]:
        """The values of the last steps; none where the run has only one."""
        values = [row[name] for row in rows if name in row]
        return values[-min(LAST, len(values) - 1) :] if len(values) > 1 else []

    faults, lower = [], f"try a lower {rate}"
    scores = [row["reward/mean"] for row in rows if "reward/mean" in row]
    spread = next((row["reward/std"] for row in rows if "reward/std" in row), 0.0)
    alike = last("reward/std") and max(last("reward/std")) <= 0.1 * spread
    drop = max(scores) - statistics.fmean(last("reward/mean")) if len(scores) > 1 else 0.0
    high = [score - min(scores) > 0.5 * drop for score in scores]  # a single success among zeros is no level
    lasting = bool(high) and (high[0] or sum(high) > 1)
    at_lowest = alike and max(last("reward/mean")) - min(scores) <= 0.1 * drop
    fell = at_lowest and lasting and drop > max(0.5 * spread, 1e-6)
    if fell:
        faults.append(f"the reward fell from {max(scores):.3f} to its lowest, {scores[-1]:.3f}, for all alike; {lower}")
    for key, name, worse in (("accuracy", "held-out accuracy", 0), ("reverse_kl", "held-out reverse KL", 1)):
        before, after = (summary.get(f"{key}_interval_{when}") for when in ("before", "after"))
        if before and after and (after[1] < before[0], after[0] > before[1])[worse]:
            values = [summary[f"{key}_{when}"] for when in ("before", "after")]
            faults.append(f"the {name} got worse, {values[0]:.4g} -> {values[1]:.4g}; {lower}")
    for name, reference in (("kl/ref", "the reference"), ("kl/approx", "the policy before an update")):
        if last(name) and statistics.median(map(abs, last(name))) > KL_LOST:
            faults.append(
                f"the KL to {reference} is {last(name)[-1]:.4g} nats a token: the policy has left it; {lower}"
            )
    updates = [row["optim/updates"] for row in rows if "optim/updates" in row]
    if updates and not any(updates):
        faults.append("no update was applied: groups that score alike, or gradients that are not finite, train nothing")
    cut, lengths = last("rollout/truncated_frac"), last("rollout/length_mean")
    before, after = (summary.get(f"accuracy_interval_{when}") for when in ("before", "after"))
    rose = before and after and after[0] > before[1]  # as where the reward reads the first line of a base model's text
    if cut and min(cut) > 0.95 and not rose:
        faults.append(
            "nearly every completion is cut at the length limit; try a higher one, or a reward that pays for ending"
        )
    if cut and lengths and max(lengths) <= 1.01 and max(cut) < 0.5:
        faults.append(f"the policy says nothing: completions are empty; {lower}, or a reward that pays 0 for them")
    return faults
