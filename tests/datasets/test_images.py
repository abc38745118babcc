import matplotlib.image
import pytest
import torch
from torch.testing import assert_close

from pyrograph.datasets import NoisyImage, denoise
from pyrograph.errors import DataFormatError, DataNotFound, OptionError, ShapeMismatch

ROW = " ".join(["0.5"] * 50)


@pytest.fixture
def read(monkeypatch, tmp_path):
    """The square with this text in its place."""
    (tmp_path / "denoise").mkdir()
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))

    def read(text):
        (tmp_path / "denoise" / "square_noisy_50x50.txt").write_text(text)
        return denoise()

    return read


@pytest.mark.parametrize(
    "line", ["0.5 0.5", ROW + " 1", ROW[:-3] + "nan", ROW[:-3] + "x.y", ROW[:-3] + "1_0"]
)
def test_a_line_that_is_not_fifty_numbers_is_refused_with_its_number(read, line):
    with pytest.raises(DataFormatError, match=r"square_noisy_50x50\.txt:3"):
        read("\n".join([ROW, ROW, line] + [ROW] * 47))


def test_a_missing_line_is_refused(read):
    with pytest.raises(DataFormatError, match="49 lines"):
        read("\n".join([ROW] * 49))


def test_a_picture_with_colours_is_refused(monkeypatch, tmp_path):
    (tmp_path / "denoise").mkdir()
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    coloured = torch.rand(50, 50, 3).numpy()
    matplotlib.image.imsave(tmp_path / "denoise" / "camera_50x50.png", coloured)
    with pytest.raises(DataFormatError, match="grey"):
        denoise("camera_50")


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n\0\0"])
def test_a_file_that_is_no_picture_is_refused(monkeypatch, tmp_path, content):
    (tmp_path / "denoise").mkdir()
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    (tmp_path / "denoise" / "camera_50x50.png").write_bytes(content)
    with pytest.raises(DataFormatError, match=r"camera_50x50\.png: it cannot be read"):
        denoise("camera_50")


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("lena", {}), "camera_128"),
        (("square", {"noise": 0.2}), "part of the file"),
        (("camera_50", {"noise": 0.0}), "above 0"),
        (("camera_50", {"noise": float("inf")}), "noise=inf must be a finite number"),
        (("camera_50", {"noise": float("nan")}), "noise=nan must be a finite number"),
        (("camera_50", {"noise": "a"}), "noise='a' must be a finite number"),
        (("camera_50", {"noise": True}), "noise=True must be a finite number"),
        (("camera_50", {"seed": None}), "seed=None must be a whole number"),
        (("camera_50", {"seed": 1.5}), r"seed=1\.5 must be a whole number"),
        (("camera_50", {"seed": 2**70}), "must be a whole number of 64 bits"),
        ((["square"], {}), r"no image \['square'\]"),
    ],
)
def test_what_there_is_not_is_refused(arguments, text):
    name, options = arguments
    with pytest.raises(OptionError, match=text):
        denoise(name, **options)


def test_absent_images_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"square_noisy_50x50\.txt.*denoise"):
        denoise()


def test_the_square_has_its_documented_statistics(data_root):
    observed = denoise().observed
    assert observed.shape == (50, 50)
    found = [observed.min().item(), observed.max().item(), observed.mean().item()]
    assert_close(found, [-0.2533, 1.2491, 0.4728], rtol=0, atol=5e-5)


def test_the_square_is_its_redrawn_image_with_white_noise_of_the_documented_size(data_root):
    image = denoise()
    error = (image.observed - image.clean).double()
    # five standard errors of a variance, a mean and a correlation of 2500 white numbers
    assert_close(error.square().mean().item(), 0.01, rtol=0.14, atol=0)
    assert abs(error.mean().item()) < 0.01
    for one, other in ((error[1:], error[:-1]), (error[:, 1:], error[:, :-1])):
        assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 0.1


@pytest.mark.parametrize("size", [50, 128])
def test_photographs_have_the_noise_that_is_asked_for(data_root, size):
    image = denoise(f"camera_{size}", noise=0.2, seed=3)
    assert image.clean.shape == image.observed.shape == (size, size)
    assert image.clean.min() >= 0 and image.clean.max() == 1
    assert_close((image.observed - image.clean).std().item(), 0.2, rtol=0.07, atol=0)
    assert torch.equal(image.observed, denoise(f"camera_{size}", noise=0.2, seed=3).observed)
    assert not torch.equal(image.observed, denoise(f"camera_{size}", noise=0.2).observed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_have_the_default_dtype(data_root, dtype):
    torch.set_default_dtype(dtype)
    for name in ("square", "camera_50"):
        image = denoise(name)
        assert (image.observed.dtype, image.clean.dtype) == (dtype, dtype)


def test_errors_are_of_all_pixels_in_whichever_shape():
    image = NoisyImage(torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [0.0, 0.0]]), 0.1)
    assert_close(image.mean_square_error(image.observed), torch.tensor(0.25))
    assert_close(image.mean_square_error(torch.tensor([0.0, 1.0, 0.0, 2.0])), torch.tensor(1.0))
    with pytest.raises(ShapeMismatch, match=r"\(4, 1\)"):
        image.mean_square_error(torch.zeros(4, 1))
