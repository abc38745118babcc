"""The Stein direction and discrepancy against plain double loops."""

import pytest
import torch
from torch.testing import assert_close

from pyrograph.errors import OptionError
from pyrograph.kernels import (
    IMQ,
    RBF,
    Linear,
    Mixed,
    Own,
    RandomNeighbors,
    SteinOperator,
    Sum,
    bandwidth,
    radial,
    stein,
)

from .reference import (
    blankets,
    column_scopes,
    columns_of,
    double_loop,
    drawn_scopes,
    grid_edges,
    layout_of,
    own_scopes,
)

GRID = layout_of([1] * 6, grid_edges(2, 3))
PLANE = layout_of([2] * 4, grid_edges(2, 2))
RAGGED = layout_of([1, 3, 2, 1, 1], [(0, 1), (1, 2), (2, 3)])  # unequal widths, one isolated node
HUB = layout_of([1] * 5, [(0, i) for i in range(1, 5)])
LAYOUTS = {"grid": GRID, "plane": PLANE, "ragged": RAGGED, "hub": HUB}
KERNELS = (
    RBF(),
    IMQ(),
    RBF(1.7),
    IMQ(2.3, exponent=-0.3),
    Linear(),
    0.4 * RBF() + 0.4 * Own(IMQ()) + 0.2 * Linear(),
)
LOCALITIES = ("blanket", "global", RandomNeighbors(1), Mixed("blanket", "global", weight=0.3))


def points(layout, n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, layout.dim, generator=g) for _ in range(2))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("locality", LOCALITIES, ids=repr)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_direction_and_discrepancy_equal_a_double_loop(name, locality, kernel):
    layout = LAYOUTS[name]
    x, score = points(layout, n=4)  # six pairs: the median is between two distances
    operator = SteinOperator(layout, kernel, locality)
    field = operator(x, score)
    scopes = drawn_scopes(operator)
    if isinstance(kernel, Sum):
        assert scopes.pop() == (1.0, own_scopes(layout))
    truth = double_loop(x, score, kernel, scopes, own_scopes(layout))
    assert_close(field.direction, truth.direction, rtol=0, atol=1e-10)
    assert abs(float(field.total) - truth.total) < 1e-10
    assert abs(float(field.diagonal) - truth.diagonal) < 1e-10
    assert_close(operator.gram(x, score), truth.gram, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_every_number_of_particles_equals_a_double_loop(n):
    x, score = points(GRID, n)
    operator = SteinOperator(GRID)
    truth = double_loop(x, score, RBF(), drawn_scopes(operator))
    field = operator(x, score)
    assert_close(field.direction, truth.direction, rtol=0, atol=1e-10)
    assert abs(float(field.total) - truth.total) < 1e-10


@pytest.mark.parametrize("name", LAYOUTS)
def test_blanket_scopes_are_the_closed_blankets(name):
    layout = LAYOUTS[name]
    ((weight, scopes),) = drawn_scopes(SteinOperator(layout, locality="blanket"))
    assert weight == 1
    assert scopes == column_scopes(layout, blankets(layout))


def test_global_is_textbook_svgd():
    x, score = points(GRID, n=5)
    h = torch.pdist(x).quantile(0.5).square()
    k = torch.exp(-torch.cdist(x, x).square() / h)
    # phi(x_m) = 1/n sum_l k_lm s_l + (2/h) k_lm (x_m - x_l)
    truth = (k @ score + (2 / h) * (k.sum(1, keepdim=True) * x - k @ x)) / len(x)
    field = SteinOperator(GRID, locality="global")(x, score)
    assert_close(field.direction, truth, rtol=0, atol=1e-12)


def test_one_particle_moves_along_the_score():
    x, score = points(GRID, n=1)
    for kernel in KERNELS:
        assert_close(SteinOperator(GRID, kernel)(x, score).direction, score, rtol=0, atol=1e-15)


def test_a_blanket_kernel_on_a_complete_graph_is_the_global_one_bit_for_bit():
    n = 5
    layout = layout_of([1, 2] * 2, [(i, j) for i in range(4) for j in range(i)])
    x, score = points(layout, n)
    blanket = SteinOperator(layout, locality="blanket")(x, score)
    everything = SteinOperator(layout, locality="global")(x, score)
    assert torch.equal(blanket.direction, everything.direction)
    assert torch.equal(blanket.total, everything.total)


def test_a_node_outside_the_blanket_leaves_the_direction_unchanged():
    layout = layout_of([2] * 5, [(i, i + 1) for i in range(4)])
    x, score = points(layout, n=6)
    operator = SteinOperator(layout)
    before = operator(x, score).direction
    far = columns_of(layout, {3})
    x[:, far] += torch.randn(6, 2)
    after = operator(x, score).direction
    unaffected = columns_of(layout, {0, 1})  # node 3 is in the blankets of 2, 3 and 4 alone
    assert_close(after[:, unaffected], before[:, unaffected], rtol=0, atol=1e-14)
    assert (
        after[:, columns_of(layout, {2, 3, 4})] != before[:, columns_of(layout, {2, 3, 4})]
    ).all()


def test_chunks_do_not_change_the_result(monkeypatch):
    layout = layout_of([1] * 30, grid_edges(5, 6))
    x, score = points(layout, n=8)
    whole = SteinOperator(layout)(x, score)
    monkeypatch.setattr(stein, "MAX_NODES", 4)
    assert_close(SteinOperator(layout)(x, score).direction, whole.direction, rtol=0, atol=1e-14)
    monkeypatch.setattr(stein, "MAX_ELEMENTS", 1)
    assert_close(SteinOperator(layout)(x, score).direction, whole.direction, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kernel", [RBF(), IMQ(), 0.5 * IMQ(1.3) + 0.5 * RBF("fast")], ids=repr)
def test_pieces_of_the_pairs_do_not_change_the_result(kernel, monkeypatch):
    layout = layout_of([2] * 4, grid_edges(2, 2))
    x, score = points(layout, n=23)
    whole = SteinOperator(layout, kernel)(x, score)
    monkeypatch.setattr(radial, "MAX_PAIRS", 23 * 4 * 5)  # pieces of 5 columns, and of 3
    monkeypatch.setattr(bandwidth, "MANY", 20)
    parts = SteinOperator(layout, kernel)(x, score)
    assert_close(parts.direction, whole.direction, rtol=0, atol=1e-13)
    assert_close(parts.total, whole.total, rtol=1e-12, atol=0)
    assert_close(parts.diagonal, whole.diagonal, rtol=1e-12, atol=0)


def clique(nodes):
    return [(i, j) for i in nodes for j in nodes if j < i]


@pytest.mark.parametrize(
    "layout",
    [
        layout_of([1] * 6, [(i, i + 1) for i in range(5)]),  # few nodes of sizes 2 and 3
        layout_of([1] * 36, clique(range(17)) + clique(range(17, 36))),  # sizes 17 and 19
    ],
    ids=["merged", "rounded"],
)
def test_padding_does_not_change_the_result(layout):
    x, score = points(layout, n=3)
    operator = SteinOperator(layout)
    assert any((part.scope == layout.dim).any() for part in operator.scopes[0][1])
    truth = double_loop(x, score, RBF(), [(1.0, column_scopes(layout, blankets(layout)))])
    assert_close(operator(x, score).direction, truth.direction, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", [RBF(), IMQ()], ids=repr)
def test_float32_far_from_the_origin_agrees_with_float64(kernel):
    x, score = points(GRID, n=20)
    single = SteinOperator(GRID, kernel)(x.float() + 1e3, score.float())
    # the same (rounded) particles in double precision
    double = SteinOperator(GRID, kernel)((x.float() + 1e3).double(), score.float().double())
    assert single.direction.dtype == torch.float32
    assert_close(single.direction.double(), double.direction, rtol=0, atol=2e-6)
    assert_close(single.discrepancy(), double.discrepancy(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [RBF(), IMQ()], ids=repr)
def test_coincident_particles_do_not_repel(kernel, dtype):
    x, score = points(GRID, n=1)
    x, score = x.expand(9, -1).to(dtype), score.expand(9, -1).to(dtype)
    direction = SteinOperator(GRID, kernel)(x, score).direction
    assert_close(direction, score, rtol=1e-6, atol=0)


@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.parametrize(("kernel", "bend"), [(RBF(), 2.0), (IMQ(), 1.0)], ids=repr)
def test_copies_of_a_particle_have_its_discrepancy(kernel, bend, n):
    # h = 1, and of every column s^2 + d d'k, which is -2 f'(0) / h
    x, score = points(GRID, n=1)
    field = SteinOperator(GRID, kernel)(x.expand(n, -1), score.expand(n, -1))
    assert float(field.discrepancy()) == pytest.approx(float(score.square().sum()) + 6 * bend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gram_of_coincident_particles_is_finite(dtype):
    # k = 1 and d k / dx = 0, so that every pair has s s' + 2 / h, summed over columns
    tiny = 1e-25 if dtype == torch.float32 else 1e-160  # its square is 0
    score = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]], dtype=dtype)
    operator = SteinOperator(layout_of([1] * 2, [(0, 1)]), RBF(tiny))
    gram = operator.gram(torch.ones(3, 2, dtype=dtype), score)
    assert_close(gram, score @ score.t() + 4 / tiny)


def test_half_of_the_particles_coinciding_gives_finite_directions():
    x, score = points(GRID, n=10)
    x[:8] = x[0]  # 28 of 45 distances are zero
    field = SteinOperator(GRID)(x, score)
    # the kernel is 1 on the pile and 0 elsewhere, and coincident particles do not repel
    pile = score[:8].sum(0) / 10
    assert_close(field.direction[:8], pile.expand(8, -1), rtol=0, atol=1e-3)
    assert_close(field.direction[8:], score[8:] / 10, rtol=0, atol=1e-3)


def test_v_statistic_is_never_negative_and_u_drops_the_diagonal():
    for seed in range(5):
        x, score = points(PLANE, n=4, seed=seed)
        field = SteinOperator(PLANE)(x, score)
        assert float(field.discrepancy("V")) >= 0
        expected = (field.total - field.diagonal) / 12
        assert_close(field.discrepancy("U"), expected)


def test_statistics_are_checked():
    x, score = points(GRID, n=1)
    field = SteinOperator(GRID)(x, score)
    with pytest.raises(OptionError, match='"V" or "U"'):
        field.discrepancy("W")
    with pytest.raises(OptionError, match="two particles"):
        field.discrepancy("U")


def test_things_that_are_no_kernel_are_refused():
    for kernel in ("rbf", Own, RBF, Linear, 0.5):
        with pytest.raises(OptionError, match=r"pg\.kernels\.RBF"):
            SteinOperator(GRID, kernel=kernel)
    for build in (
        lambda: RBF() + "rbf",
        lambda: RBF() + IMQ,
        lambda: Own("rbf"),
        lambda: Own(RBF),
        lambda: Own(RBF() + RBF()),
    ):
        with pytest.raises(OptionError, match=r"pg\.kernels\.RBF"):
            build()
    for weight in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="must be above 0"):
            weight * RBF()
    with pytest.raises(OptionError, match="must be above 0 and finite"):
        1e200 * (1e200 * RBF())


def test_sums_multiply_out():
    kernel = 0.5 * (0.4 * RBF() + Own(IMQ())) + Linear()
    assert repr(kernel) == (
        "0.2 * RBF(bandwidth='median') + 0.5 * Own(IMQ(bandwidth='median', exponent=-0.5)) "
        "+ 1 * Linear()"
    )


def test_given_bandwidths_are_used_and_returned():
    x, score = points(PLANE, n=6)
    kernel = RBF() + Own(RBF())
    operator = SteinOperator(PLANE, kernel)
    first = operator(x, score)
    assert [h.shape for h in first.bandwidths] == [(4, 1), (4, 1)]
    assert torch.equal(operator(x, score, bandwidths=first.bandwidths).direction, first.direction)
    ones = [torch.full_like(h, 1.7) for h in first.bandwidths]
    fixed = SteinOperator(PLANE, RBF(1.7) + Own(RBF(1.7)))(x, score)
    assert_close(operator(x, score, bandwidths=ones).direction, fixed.direction)


def test_the_linear_kernel_alone_drives_particles_to_the_moments_of_a_gaussian():
    """Its Stein identities are those of mean and covariance within the scope."""
    precision = torch.tensor([[2.0, 0.8], [0.8, 1.0]])
    operator = SteinOperator(layout_of([1, 1], [(0, 1)]), Linear())
    x = torch.randn(10, 2, generator=torch.Generator().manual_seed(3)) + 2
    for _ in range(1000):
        x = x + 0.05 * operator(x, -x @ precision, discrepancy=False).direction
    assert_close(x.mean(0), torch.zeros(2), rtol=0, atol=1e-6)
    assert_close(x.t().cov(correction=0), precision.inverse(), rtol=0, atol=1e-5)


def test_mixed_is_linear_in_its_parts():
    x, score = points(GRID, n=5)
    parts = [SteinOperator(GRID, locality=name)(x, score) for name in ("blanket", "global")]
    mixed = SteinOperator(GRID, locality=Mixed("blanket", "global", weight=0.25))(x, score)
    expected = 0.25 * parts[0].direction + 0.75 * parts[1].direction
    assert_close(mixed.direction, expected, rtol=0, atol=1e-15)
    assert_close(mixed.total, 0.25 * parts[0].total + 0.75 * parts[1].total)
