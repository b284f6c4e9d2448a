"""KL divergence to the reference: estimators, the forms that serve as a loss, the adaptive coefficient."""


def kl_estimate(logprobs, ref_logprobs, estimator: str):
    """Per-token estimate of KL(policy || reference) from the policy's own samples, any shape (Schulman 2020)."""
    d = logprobs - ref_logprobs
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    return (-d).clamp(-20, 20).exp() + d - 1  # k3, bounded like the ratio


def kl_loss(logprobs, old_logprobs, ref_logprobs, estimator: str):
    """Per-token KL(policy || reference) as a term of the loss, [B, T].

    k3_ratio is k3 times the ratio: its gradient is the exact one of the reverse KL, whoever sampled (arXiv 2510.01555,
    and DeepSeek-V3.2, arXiv 2512.02556). k2's is exact on-policy, k3's is that of the forward KL, k1's is zero.
    """
    if estimator == "k3_ratio":
        return (logprobs - old_logprobs).clamp(-20, 20).exp() * kl_estimate(logprobs, ref_logprobs, "k3")
    return kl_estimate(logprobs, ref_logprobs, estimator)


def next_kl_coef(kl_coef: float, kl: float, target: float, horizon: int, completions: int) -> float:
    """Proportional controller of Ziegler 2019, eq. 4; kl and target in nats per completion."""
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * completions / horizon)
