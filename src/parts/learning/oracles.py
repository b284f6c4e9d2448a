"""Formulas as loops over single tokens, independent of the numerics, for checks to compare with."""


def own_gae(rewards, values, mask, gamma: float, gae_lambda: float, after=None):
    """Advantages [B, T] by the sum A_t = sum_l (gamma lambda)^l delta_{t + l} over a row's sampled tokens alone.

    `after` [B] has the value of what follows a row's last token; nothing does by default.
    """
    advantages = values * 0
    for i, columns in enumerate(row.nonzero().flatten().tolist() for row in mask):
        r, v = ([x[i, c].item() for c in columns] for x in (rewards, values))
        v.append(0.0 if after is None else float(after[i]))
        delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]
        for t, column in enumerate(columns):
            advantages[i, column] = sum((gamma * gae_lambda) ** k * delta[t + k] for k in range(len(r) - t))
    return advantages
