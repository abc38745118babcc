"""The next letters of a book by an infinite hidden Markov model.

    python benchmarks/dpvi/alice.py [--seeds 5] [--quick] [--threads 1]

Paper, figure 7: Alice in Wonderland, the first 1,000 symbols to learn from, the next 4,000 to be
predicted; the paper has 31 symbols. Clean-up here: lower case, white space as one blank, all other
signs left out but those that come up in the first 5,000 characters. That leaves 37, of which the
paper must have dropped or joined six. alpha = gamma = 1, the paper's urn, one forward pass.
The paper does not state the prior of a state's symbols. A filter of 100 particles that finds its
21 states needs one as sparse as Dir(.001); with Dir(1), which its smoothing by 1 may suggest, one
state for all symbols is far more probable than a state for each, and the best particles have one.
Dir(.001), Dir(.1) and Dir(1) are run.

50 chains drawn by the particles' weights predict. Chain z: moves (n_jc + alpha beta_c) /
(n_j + alpha), where the oracle beta is n_c, and gamma for a new state, normalised over all states
that j has not moved to; symbols (n_cs + 1) / (n_c + S). A new state moves as one that has moved
nowhere and emits uniformly. The 4,000 symbols are filtered exactly at these numbers; predictive log
likelihood = log mean over the 50 chains. PF: optimal proposal, multinomial (M) or stratified (S)
below K / 2; its numbers are means over the seeds. Beam: Van Gael et al. (2008) on the true
franchise, paths after every 40th of 2,000 sweeps (paper: every 200th of 10,000). Unigram, bigram:
add-1 frequencies of the 1,000.

The same with Dir(.001) on all stretches of 5,000 symbols that the book has, but for the four on
which that prior was chosen: K = 10, a filter's numbers are means over the seeds.

Criteria, over the stretches: DPVI(10) predicts better than PF-M(10) and PF-S(10), and finds more
states than they do, p < .05 by sign tests. The paper, K = 100: 147 states against 21. These were
first asked of the first stretch with Dir(1), where the second one does not hold, nor with Dir(.1).
Reported: log joint densities of the training symbols with one state throughout and with a state for
every symbol, which say what a bound on the evidence can be expected to like.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice, product

import baselines_labels as baselines
import criteria
import matplotlib.pyplot as plt
import numpy as np
import torch
from beam_sampler import beam
from criteria import report, sign_test
from ihmm import SCHEMES, chain
from torch import Tensor

import pyrograph as pg

TRAIN, TEST, CHAINS, ALPHA, GAMMA = 1000, 4000, 50, 1.0, 1.0
#: Sweeps of the beam sampler between its chains.
THIN = 40
#: Of the symbols of a state, from one that wants states to differ to one that does not.
PRIORS = (0.001, 0.1, 1.0)
#: Stretches by which the first of these was chosen.
CHOSEN_BY = (0, 2, 4, 6)


@torch.inference_mode()
def predicts(labels: Tensor, train: Tensor, test: Tensor, num_symbols: int) -> float:
    """Log mean over chains ``[P, t]`` of the probability of the test symbols."""
    size = int(labels.max()) + 2  # the last one, and any a chain lacks, is new
    count = len(labels)
    rows = torch.arange(count)
    moves, emit = torch.zeros(count, size, size), torch.zeros(count, size, num_symbols)
    # the start row is none of the states'
    entered = torch.zeros(count, size).index_put_(
        (rows, labels[:, 0]), torch.ones(count), accumulate=True
    )
    for t, symbol in enumerate(train.tolist()):
        emit[rows, labels[:, t], symbol] += 1
        if t:
            moves[rows, labels[:, t - 1], labels[:, t]] += 1
            entered[rows, labels[:, t]] += 1
    oracle = entered.unsqueeze(1).expand_as(moves).masked_fill(moves > 0, 0).clone()
    oracle[..., -1] = GAMMA
    oracle /= oracle.sum(2, keepdim=True)
    moves = (moves + ALPHA * oracle) / (moves.sum(2, keepdim=True) + ALPHA)
    emit = (emit + 1) / (emit.sum(2, keepdim=True) + num_symbols)
    belief = torch.nn.functional.one_hot(labels[:, -1], size).to(moves).unsqueeze(1)
    total = torch.zeros(count)
    for symbol in test.tolist():
        belief = (belief @ moves) * emit[:, None, :, symbol]
        mass = belief.sum(2, keepdim=True)
        total += mass.log().view(-1)
        belief = belief / mass
    return float(total.logsumexp(0) - np.log(count))


def counted(train: Tensor, test: Tensor, num_symbols: int) -> dict[str, float]:
    """Log likelihood of the test symbols by add-1 frequencies, of symbols and of pairs."""
    single = torch.bincount(train, minlength=num_symbols) + 1.0
    pairs = torch.ones(num_symbols, num_symbols)
    pairs.index_put_((train[:-1], train[1:]), torch.ones(len(train) - 1), accumulate=True)
    before = torch.cat([train[-1:], test[:-1]])
    return {
        "unigram": float((single / single.sum())[test].log().sum()),
        "bigram": float((pairs / pairs.sum(1, keepdim=True))[before, test].log().sum()),
    }


def sampled(
    train: Tensor, num_symbols: int, prior: float, thin: int, rng: np.random.Generator
) -> tuple[Tensor, float]:
    """50 paths ``[50, T]`` of the beam sampler, and processor seconds."""
    begin = time.process_time()
    chain = beam(train.numpy(), num_symbols, rng, ALPHA, GAMMA, prior)
    paths = list(islice(chain, thin - 1, CHAINS * thin, thin))
    return torch.as_tensor(np.stack(paths)), time.process_time() - begin


def drawn(found: baselines.Weighted, rng: np.random.Generator) -> Tensor:
    """``[50, T]`` by weight."""
    weights = found.log_weights.exp().numpy()
    index = rng.choice(len(weights), CHAINS, p=weights / weights.sum())
    return found.labels["z"][torch.as_tensor(index)]


def scores(
    fits: Sequence[baselines.Weighted],
    train: Tensor,
    test: Tensor,
    num_symbols: int,
    rng: np.random.Generator,
) -> list[tuple[float, float, float]]:
    """Predictive log likelihood, number of states and seconds of every run."""
    return [
        (predicts(drawn(r, rng), train, test, num_symbols), r.num_clusters, r.seconds) for r in fits
    ]


def fitted(
    train: Tensor,
    num_symbols: int,
    prior: float,
    counts: Sequence[int],
    runs: int,
    rng: np.random.Generator,
) -> dict[str, list[baselines.Weighted]]:
    """Labellings of the training symbols by DPVI, and by some runs of each filter."""
    arguments = train, num_symbols, ALPHA, GAMMA, prior
    program, out = baselines.program_of(chain, *arguments), {}
    for count in counts:
        engine = pg.SequentialDPVI(chain, num_particles=count, progress=False)
        out[f"DPVI({count})"] = [baselines.fit(engine, *arguments)]
        for name, scheme in SCHEMES.items():
            out[f"{name}({count})"] = [
                baselines.particle_filter(program, count, rng, scheme) for _ in range(runs)
            ]
    return out


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the tables and the criteria, draw the figure; True if all criteria hold."""
    args = criteria.arguments(__doc__, 5, argv)
    counts, size = ((1, 10), 100) if args.quick else ((1, 10, 100), TRAIN)
    length = size + min(TEST, 4 * size)
    text = pg.datasets.alice()
    stretches = 2 if args.quick else len(text.codes) // length
    train, test = text.codes[:size], text.codes[size:length]
    num_symbols = len(text.symbols)
    print(f"{num_symbols} symbols: {text.symbols!r}; {size} to learn from, {len(test)} to predict")
    found = {
        ("", name): [(value, 0, 0)] for name, value in counted(train, test, num_symbols).items()
    }
    rng, runs = np.random.default_rng(0), 1 if args.quick else args.seeds
    for prior in PRIORS[:1] if args.quick else PRIORS:
        for name, fits in fitted(train, num_symbols, prior, counts, runs, rng).items():
            found[prior, name] = scores(fits, train, test, num_symbols, rng)
        paths, seconds = sampled(train, num_symbols, prior, 2 if args.quick else THIN, rng)
        states = float((paths.amax(1) + 1.0).mean())
        found[prior, "beam"] = [(predicts(paths, train, test, num_symbols), states, seconds)]
    print(f"Dir    {'':10s} {'log lik.':>10s} {'SD':>6s} {'a symbol':>9s} {'states':>7s} {'s':>6s}")
    for (prior, name), rows in found.items():
        value, states, seconds = np.mean(rows, 0)
        line = f"{prior!s:6s} {name:10s} {value:10.1f} {np.std([row[0] for row in rows]):6.1f}"
        print(f"{line} {value / len(test):9.4f} {states:7.1f} {seconds:6.2f}")
    for prior in PRIORS:
        program = baselines.program_of(chain, train, num_symbols, ALPHA, GAMMA, prior)
        joint = program.log_prob({"z": torch.stack([torch.zeros_like(train), train])})
        values = [predicts(z[None], train, test, num_symbols) for z in (0 * train, train)]
        print(
            f"Dir({prior}): log joint with one state {joint[0]:.1f}, with a state a symbol "
            f"{joint[1]:.1f}; they predict {values[0]:.1f} and {values[1]:.1f}"
        )
    stretched = text.codes[: stretches * length].view(stretches, length)
    fresh = [k for k in range(stretches) if k not in CHOSEN_BY]
    passed = compare(stretched[fresh], size, num_symbols, runs, rng)
    plot(found, counts, len(test), criteria.figure_path("alice", args.quick))
    return all(passed)


def compare(
    codes: Tensor, size: int, num_symbols: int, runs: int, rng: np.random.Generator
) -> list[bool]:
    """The criteria over stretches ``[n, length]``, of which the first ``size`` are learnt from."""
    found = {}
    for stretch in codes:
        train, test = stretch[:size], stretch[size:]
        for name, fits in fitted(train, num_symbols, PRIORS[0], (10,), runs, rng).items():
            row = np.mean(scores(fits, train, test, num_symbols, rng), 0)
            found.setdefault(name, []).append(row[:2])
    found = {name: np.array(rows).T for name, rows in found.items()}
    print(f"{len(codes)} stretches, Dir({PRIORS[0]}), K = 10: a symbol, states")
    for name, (values, states) in found.items():
        print(f"{name:10s} {values.mean() / len(test):9.4f} {states.mean():7.1f}")
    passed = []
    for scheme in SCHEMES:
        for k, what in enumerate(("predicts better", "finds more states")):
            ours, theirs = found["DPVI(10)"][k], found[f"{scheme}(10)"][k]
            p = sign_test(theirs, ours)
            wins = int((theirs < ours).sum())
            text = f"on {wins} of {len(ours)} stretches, p = {p:.1e}"
            name = f"DPVI(10) {what} than {scheme}(10)"
            passed.append(report(name, ours.mean() > theirs.mean() and p < 0.05, text))
    return passed


def plot(found: dict, counts: Sequence[int], num_test: int, path) -> None:
    """Predictive log likelihoods and states by K."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    styles = zip(PRIORS, ("-", "--", ":"), strict=True)
    for (prior, style), name in product(styles, ("DPVI", *SCHEMES)):
        if (prior, f"{name}({counts[0]})") not in found:
            continue
        rows = [np.array(found[prior, f"{name}({count})"]) for count in counts]
        color = f"C{('DPVI', *SCHEMES).index(name)}"
        for k, (axis, scale) in enumerate(zip(axes, (num_test, 1), strict=True)):
            mean = [r[:, k].mean() / scale for r in rows]
            sd = [r[:, k].std() / scale for r in rows]
            label = f"{name}, Dir({prior:g})"
            axis.errorbar(counts, mean, sd, fmt="o" + style, color=color, capsize=2, label=label)
    lines = (("", "unigram", "-."), ("", "bigram", ":"), (PRIORS[0], "beam", (0, (5, 1))))
    for prior, name, style in lines:
        axes[0].axhline(found[prior, name][0][0] / num_test, color="k", ls=style, lw=1, label=name)
    axes[0].set(xscale="log", xlabel="K", ylabel="predictive log likelihood a symbol")
    axes[1].set(xscale="log", xlabel="K", ylabel="states")
    axes[0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
