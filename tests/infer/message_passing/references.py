"""The same algorithms in plain numpy, one message at a time, on probabilities instead of logs."""

from __future__ import annotations

import numpy as np

from .builders import Tables


def _along(vector: np.ndarray, slot: int, arity: int) -> np.ndarray:
    return vector.reshape([-1 if k == slot else 1 for k in range(arity)])


def _split(model: Tables) -> tuple[list[np.ndarray], list[tuple[tuple[int, ...], np.ndarray]]]:
    """Products of each node's own tables, and the tables of more nodes."""
    base, wide = [np.ones(c) for c in model.cards], []
    for scope, table in zip(model.scopes, model.tables):
        table = table.double().exp().numpy()
        if len(scope) == 1:
            base[scope[0]] = base[scope[0]] * table
        else:
            wide.append((scope, table))
    return base, wide


def fractional_bp(
    model: Tables, alpha: float, damping: float = 0.3, sweeps: int = 3000
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Beliefs of the nodes and of the factors at a fixed point of fractional belief propagation.

    One factor after the other: m_i^alpha = sum_{x minus i} f^alpha prod_{j != i} n_j, where
    n_j = (base_j prod_{b != a} m_b) m_a^(1 - alpha).
    """
    base, wide = _split(model)
    messages = {(a, i): np.ones(model.cards[i]) for a, (s, _) in enumerate(wide) for i in s}

    def cavity(a: int, i: int) -> np.ndarray:
        n = base[i].copy()
        for (b, j), m in messages.items():
            if j == i:
                # a state that factor a excludes has no cavity: f is zero there
                part = np.where(m > 0, m, 1.0) ** (1 - alpha) * (m > 0) if b == a else m
                n = n * part
        return n / n.sum()

    for _ in range(sweeps):
        moved = 0.0
        for a, (scope, table) in enumerate(wide):
            n = [cavity(a, i) for i in scope]
            for slot, i in enumerate(scope):
                value = table**alpha
                for other in range(len(scope)):
                    if other != slot:
                        value = value * _along(n[other], other, len(scope))
                value = value.sum(tuple(k for k in range(len(scope)) if k != slot))
                new = value ** ((1 - damping) / alpha) * messages[a, i] ** damping
                new = new / new.sum()
                moved = max(moved, np.abs(new - messages[a, i]).max())
                messages[a, i] = new
        if moved < 1e-14:
            break
    assert moved < 1e-10, "the reference does not settle"
    nodes = []
    for i in range(len(model.cards)):
        q = base[i].copy()
        for (_, j), m in messages.items():
            q = q * m if j == i else q
        nodes.append(q / q.sum())
    factors = []
    for a, (scope, table) in enumerate(wide):
        value = table**alpha
        for slot, i in enumerate(scope):
            value = value * _along(cavity(a, i), slot, len(scope))
        factors.append(value / value.sum())
    return nodes, factors


def _entropy(p: np.ndarray) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def _mean_log(p: np.ndarray, log_f: np.ndarray) -> float:
    return float((p[p > 0] * log_f[p > 0]).sum())


def free_energy(model: Tables, nodes: list, factors: dict, alpha: dict | float) -> float:
    """Minus the fractional Bethe free energy of beliefs.

        sum_i (E log base_i + H_i) + sum_a (E_{b_a} log f_a + (H_a - sum_{i in a} H_i) / alpha_a)

    which is what eq (66) becomes where the beliefs of factors and nodes agree: with c_a the mass of
    f^alpha prod_i q_i / m_i^alpha, log c_a = E_{b_a} [alpha log f + sum log q - alpha sum log m -
    log b_a]. At alpha = 0 the entropies of the factor cancel.
    """
    total = 0.0
    q = [np.asarray(b, dtype=float) for b in nodes]
    total += sum(_entropy(p) for p in q)
    for k, (scope, table) in enumerate(zip(model.scopes, model.tables)):
        log_f = table.double().numpy()
        if len(scope) == 1:
            total += _mean_log(q[scope[0]], log_f)
            continue
        b = np.asarray(factors[k], dtype=float)
        a = alpha[k] if isinstance(alpha, dict) else alpha
        total += _mean_log(b, log_f)
        if a:
            total += (_entropy(b) - sum(_entropy(q[i]) for i in scope)) / a
    return total


class MeanField:
    """Coordinate ascent on E_q log p + H(q), from the products of the nodes' own tables."""

    def __init__(self, model: Tables):
        self.model = model
        base, self.wide = _split(model)
        self.log_base = [np.log(b) for b in base]
        self.q = [b / b.sum() for b in base]

    def update(self, i: int) -> None:
        log_q = self.log_base[i].copy()
        for scope, table in self.wide:
            if i not in scope:
                continue
            value = np.log(table)
            for slot, j in enumerate(scope):
                if j != i:
                    value = value * _along(self.q[j], slot, len(scope))
            log_q += value.sum(tuple(k for k, j in enumerate(scope) if j != i))
        weight = np.exp(log_q - log_q.max())
        self.q[i] = weight / weight.sum()

    @property
    def bound(self) -> float:
        total = sum(float((q * b).sum()) + _entropy(q) for q, b in zip(self.q, self.log_base))
        for scope, table in self.wide:
            value = np.log(table)
            for slot, j in enumerate(scope):
                value = value * _along(self.q[j], slot, len(scope))
            total += float(value.sum())
        return total
