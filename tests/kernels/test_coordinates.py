"""Kernels in other coordinates, against the same kernels on particles that were changed by hand."""

import pytest
import torch
from torch.testing import assert_close

from pyrograph.kernels import RBF, Layout, Linear, SteinOperator
from pyrograph.kernels.coordinates import Coordinates

DIM, N = 6, 9
#: Two groups of two columns that do not lie side by side, and two of one.
GROUPS = [torch.tensor([[0, 4], [2, 3]]), torch.tensor([[1], [5]])]


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    roots = [draw(len(own), own.shape[1], own.shape[1]).triu() for own in GROUPS]
    for root in roots:
        root.diagonal(dim1=1, dim2=2).abs_().add_(0.3)
    matrix = torch.zeros(DIM, DIM, dtype=torch.float64)
    for own, root in zip(GROUPS, roots, strict=True):
        for columns, block in zip(own, root, strict=True):
            matrix[columns[:, None], columns] = block
    return Coordinates(list(zip(GROUPS, roots, strict=True))), matrix, draw(N, DIM), draw(N, DIM)


def layout():
    """A cycle of nodes of one column, of which 0 and 4, and 2 and 3, have the same blankets."""
    near = [[1, 4], [0, 2, 3, 4], [1, 3], [1, 2], [0, 1], []]
    pointer = torch.tensor([0, *[len(n) for n in near]]).cumsum(0)
    return Layout(torch.arange(DIM + 1), pointer, torch.tensor([k for own in near for k in own]))


def test_products_are_those_of_the_whole_matrix(given):
    coordinates, matrix, x, score = given
    assert_close(coordinates.outward(x), x @ matrix.T)
    assert_close(coordinates.inward(x), torch.linalg.solve(matrix, x.T).T)
    assert_close(coordinates.of_score(score), score @ matrix)
    # the last of a block reads itself alone
    assert coordinates.is_mixed.tolist() == [True, False, True, False, False, False]


def test_roots_make_the_same_coordinates_again(given):
    coordinates, _, x, _ = given
    unit = Coordinates([(own, torch.eye(own.shape[1]).expand(2, -1, -1)) for own in GROUPS])
    again = unit.with_roots(coordinates.roots)
    assert torch.equal(again.inward(x), coordinates.inward(x))


def test_damaged_roots_are_told(given):
    coordinates, _, _, _ = given
    assert coordinates.are_sound
    for value in (torch.nan, torch.inf, 0.0, -1.0):
        roots = coordinates.roots.clone()
        roots[0] = value
        assert not coordinates.with_roots(roots).are_sound


def test_columns_keep_their_precision(given):
    coordinates, _, x, _ = given
    assert coordinates.inward(x.float()).dtype == torch.float32


@pytest.mark.parametrize("kernel", [RBF(), 0.7 * RBF() + 0.3 * Linear()], ids=["rbf", "sum"])
def test_direction_discrepancy_and_gram_are_those_of_changed_particles(given, kernel):
    coordinates, matrix, x, score = given
    plain = SteinOperator(layout(), kernel)
    there = plain.within(coordinates)
    z = torch.linalg.solve(matrix, x.T).T
    expected, found = plain(z, score @ matrix), there(x, score)
    assert_close(found.direction, expected.direction @ matrix.T)
    assert_close(found.discrepancy(), expected.discrepancy())
    assert_close(there.gram(x, score), plain.gram(z, score @ matrix))
    assert_close(there.gram(x, score).mean(), found.discrepancy())
    assert plain.coordinates is None


def test_a_nodes_direction_reads_its_blanket_alone(given):
    """Node 0 sees 0, 1 and 4, whatever its coordinates mix."""
    coordinates, _, x, score = given
    operator = SteinOperator(layout(), RBF()).within(coordinates)
    here = operator(x, score)
    far = x.clone()
    far[:, [2, 3, 5]] += torch.linspace(-3, 3, N)[:, None]
    there = operator(far, score, bandwidths=here.bandwidths)
    assert_close(there.direction[:, [0, 4]], here.direction[:, [0, 4]])
    assert not torch.allclose(there.direction[:, 1], here.direction[:, 1])
