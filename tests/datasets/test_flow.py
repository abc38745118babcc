import struct

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from pyrograph.datasets import OpticalFlow, optical_flow
from pyrograph.errors import DataFormatError, DataNotFound, OptionError, ShapeMismatch

#: Two rows of three pixels; the second pixel is unknown.
MOTION = (1.0, 2.0, 1.7e9, 1.7e9, 0.0, -1.0, 3.0, 0.5, 0.0, 0.0, -2.0, 0.25)


def packed(motion=MOTION, width=3, height=2, tag=202021.25, order="<"):
    return struct.pack(f"{order}fii{len(motion)}f", tag, width, height, *motion)


@pytest.fixture
def read(monkeypatch, tmp_path):
    """A pair of frames with these bytes as its flow."""
    folder = tmp_path / "middlebury_flow" / "Pair"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))

    def read(content=None, size=(2, 3)):
        for name in ("frame10.png", "frame11.png"):
            levels = torch.arange(size[0] * size[1], dtype=torch.uint8).reshape(size) * 40
            Image.fromarray(levels.numpy()).save(folder / name)
        (folder / "flow10.flo").write_bytes(packed() if content is None else content)
        return optical_flow("Pair")

    return read


def test_rows_come_first_and_u_before_v(read):
    pair = read()
    assert_close(pair.first, torch.tensor([[0.0, 40, 80], [120, 160, 200]]))
    assert_close(pair.flow[0, 0], torch.tensor([1.0, 2.0]))
    assert_close(pair.flow[0, 2], torch.tensor([0.0, -1.0]))
    assert_close(pair.flow[1, 0], torch.tensor([3.0, 0.5]))
    assert_close(pair.flow[1, 2], torch.tensor([-2.0, 0.25]))


def test_unknown_pixels_are_masked_and_count_in_no_error(read):
    pair = read()
    assert pair.known.tolist() == [[True, False, True], [True, True, True]]
    assert pair.flow.abs().max() == 3
    guess = pair.flow.clone()
    guess[0, 1] = 1000.0
    assert pair.end_point_error(guess) == 0
    guess[1, 1] = torch.tensor([3.0, 4.0])
    assert_close(pair.end_point_error(guess), torch.tensor(1.0))  # 5 pixels off, one of five


def test_a_rectangle_keeps_frames_truth_and_mask_together(read):
    part = read().crop(slice(1, 2), slice(0, 2))
    assert part.first.tolist() == [[120, 160]]
    assert part.flow.tolist() == [[[3.0, 0.5], [0.0, 0.0]]]
    assert part.known.tolist() == [[True, True]]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -2e9])
def test_a_motion_that_is_no_number_is_unknown(read, value):
    pair = read(packed((value, *MOTION[1:])))
    assert pair.known.tolist() == [[False, False, True], [True, True, True]]
    assert bool(pair.flow.isfinite().all())


@pytest.mark.parametrize(
    "content, text",
    [
        (packed(tag=1.0), "202021.25"),
        (packed(order=">"), "202021.25"),
        (b"PIEH", "202021.25"),
        (b"", "202021.25"),
        (b"ab", "202021.25"),
        (packed()[:7], "202021.25"),
        (packed()[:-4], "56 bytes"),
        (packed() + b"\0" * 8, "3 x 2"),
        (packed(width=-3, height=-2), "-3 x -2"),
    ],
)
def test_a_file_that_is_no_flow_is_refused(read, content, text):
    with pytest.raises(DataFormatError, match=text):
        read(content)


def test_flow_of_another_size_than_the_frames_is_refused(read):
    with pytest.raises(DataFormatError, match=r"\(3, 2\).*\(2, 3\)"):
        read(size=(3, 2))


def test_another_pair_is_refused_with_those_there_are(read):
    read()
    with pytest.raises(OptionError, match="Pair"):
        optical_flow("Hydrangea")


def test_absent_frames_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"frame10\.png.*Hydrangea"):
        optical_flow()


def test_an_error_of_another_shape_is_refused():
    pair = OpticalFlow(*torch.zeros(2, 4, 5), torch.zeros(4, 5, 2), torch.ones(4, 5).bool())
    with pytest.raises(ShapeMismatch, match=r"\(5, 4, 2\)"):
        pair.end_point_error(torch.zeros(5, 4, 2))


def test_hydrangea_has_its_documented_numbers(data_root):
    pair = optical_flow()
    assert pair.first.shape == pair.second.shape == (388, 584)
    assert (pair.first.min().item(), pair.first.max().item()) == (9, 228)
    assert_close(pair.known.double().mean().item(), 0.9343, rtol=0, atol=5e-5)
    u, v = pair.flow[pair.known].unbind(-1)
    ends = [u.min(), u.max(), v.min(), v.max()]
    assert_close(torch.stack(ends), torch.tensor([-7.02, 11.01, -3.20, 2.35]), rtol=0, atol=6e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_true_motion_explains_the_second_frame(data_root, dtype):
    """The README of the data: grey levels differ by 10.09 on average, by 2.60 along the flow
    (to the nearest pixel)."""
    torch.set_default_dtype(dtype)
    pair = optical_flow()
    assert (pair.first.dtype, pair.flow.dtype) == (dtype, dtype)
    height, width = pair.first.shape
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    there = torch.stack([column, row], -1) + pair.flow
    grid = 2 * there / torch.tensor([width - 1, height - 1]) - 1
    moved = torch.nn.functional.grid_sample(
        pair.second[None, None], grid[None], "nearest", "border", align_corners=True
    )[0, 0]
    still, along = (
        (pair.first - second).abs()[pair.known].mean() for second in (pair.second, moved)
    )
    assert_close([still.item(), along.item()], [10.09, 2.60], rtol=0, atol=0.006)
