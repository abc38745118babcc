"""All labellings of n elements in order of first appearance, and urns written as loops."""

import torch


def all_partitions(n):
    """``[Bell(n), n]``."""
    grown = [()]
    for _ in range(n):
        grown = [p + (c,) for p in grown for c in range(max(p, default=-1) + 2)]
    return torch.tensor(grown)


def relabelled(z, generator):
    """The same partitions under random names, negative ones and gaps included."""
    names = torch.randperm(50, generator=generator) * 7 - 100
    return names[z]


def paper_urn(z, alpha, gamma):
    """Probability of a state sequence under the urn of counts, move by move."""
    moves, previous, probability = [], "start", 1.0
    for state in z:
        out = [c for j, c in moves if j == previous]
        entered = {c: sum(d == c for _, d in moves) for _, c in moves}
        unvisited = {c: k for c, k in entered.items() if c not in out}
        share = alpha / (len(out) + alpha) / (sum(unvisited.values()) + gamma)
        if state in out:
            probability *= out.count(state) / (len(out) + alpha)
        elif state in entered:
            probability *= share * entered[state]
        else:
            probability *= share * gamma
        moves.append((previous, state))
        previous = state
    return probability


def table_urn(z, alpha, gamma):
    """Probability of a state sequence under the franchise: the sum over all seatings at tables."""
    restaurants = ["start", *z[:-1]]

    def ahead(t, tables):
        # tables: {restaurant: [[dish, customers], ...]}, the start of the sequence being seated
        if t == len(z):
            return 1.0
        here, dish = tables.get(restaurants[t], []), z[t]
        customers = sum(size for _, size in here)
        total = 0.0
        for k, (served, size) in enumerate(here):
            if served == dish:
                fuller = [list(table) for table in here]
                fuller[k][1] += 1
                rest = ahead(t + 1, {**tables, restaurants[t]: fuller})
                total += size / (customers + alpha) * rest
        dishes = [served for seats in tables.values() for served, _ in seats]
        oracle = (dishes.count(dish) or gamma) / (len(dishes) + gamma)
        rest = ahead(t + 1, {**tables, restaurants[t]: here + [[dish, 1]]})
        return total + alpha / (customers + alpha) * oracle * rest

    return ahead(0, {})


def restaurant_urn(z, alpha):
    """Probability of a labelling under the Chinese restaurant process, customer by customer."""
    probability = 1.0
    for t, label in enumerate(z):
        probability *= (z[:t].count(label) or alpha) / (t + alpha)
    return probability


def chi_square(draws, support, probabilities):
    """Pearson's statistic of draws ``[S, n]`` over ``support [R, n]``, its degrees of freedom.

    Outcomes expected less than five times are pooled.
    """
    code = torch.tensor(
        [(int(draws.max()) + support.shape[1] + 1) ** k for k in range(draws.shape[1])]
    )
    codes, counts = (draws * code).sum(-1).unique(return_counts=True)
    seen = dict(zip(codes.tolist(), counts.tolist()))
    found = torch.tensor([seen.get(c, 0) for c in (support * code).sum(-1).tolist()]).double()
    assert found.sum() == len(draws), "a draw lies outside the support"
    expected = probabilities * len(draws)
    rare = expected < 5
    pooled = [(found[~rare], expected[~rare])]
    if rare.any():
        pooled.append((found[rare].sum()[None], expected[rare].sum()[None]))
    found, expected = (torch.cat(parts) for parts in zip(*pooled))
    return float(((found - expected) ** 2 / expected).sum()), len(found) - 1
