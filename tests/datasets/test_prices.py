import math

import pytest
import torch
from torch.testing import assert_close

from pyrograph.datasets import crowd_prices
from pyrograph.errors import DataFormatError, DataNotFound

ITEMS = """item,name,listings,price_geomean
3,lamp,2,20
1,"fan, 42 inch",4,75.5
"""
ESTIMATES = """worker,item,session,estimate
w01,1,0,50
w00,3,0,10
w01,1,1,60
"""


@pytest.fixture
def read(monkeypatch, tmp_path):
    """The data set with these two tables in its place."""
    folder = tmp_path / "crowd_prices"
    folder.mkdir()
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))

    def read(items=ITEMS, estimates=ESTIMATES):
        (folder / "items.csv").write_text(items)
        (folder / "estimates.csv").write_text(estimates)
        return crowd_prices()

    return read


def test_labels_become_positions_and_prices_logarithms(read):
    crowd = read()
    assert crowd.names == ("lamp", "fan, 42 inch")
    assert crowd.worker_names == ("w00", "w01")
    assert (crowd.num_items, crowd.num_workers) == (2, 2)
    assert crowd.worker.tolist() == [1, 0, 1]
    assert crowd.item.tolist() == [1, 0, 1]
    assert_close(crowd.answer, torch.tensor([50.0, 10.0, 60.0]).log())
    assert_close(crowd.truth, torch.tensor([20.0, 75.5]).log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_have_the_default_dtype(read, dtype):
    torch.set_default_dtype(dtype)
    crowd = read()
    assert (crowd.answer.dtype, crowd.truth.dtype) == (dtype, dtype)
    assert (crowd.worker.dtype, crowd.item.dtype) == (torch.long, torch.long)


@pytest.mark.parametrize("price", ["0", "-3", "nan", "inf"])
def test_a_price_without_a_logarithm_is_refused_with_its_line(read, price):
    with pytest.raises(DataFormatError, match=rf"estimates\.csv:4: the estimate {price}"):
        read(estimates=ESTIMATES.replace("60", price))
    with pytest.raises(DataFormatError, match=rf"items\.csv:2: the price_geomean {price}"):
        read(items=ITEMS.replace("2,20", f"2,{price}"))


@pytest.mark.parametrize(
    "tables, text",
    [
        ({"items": ITEMS.replace("price_geomean", "price")}, r"items\.csv.*'price_geomean'"),
        ({"estimates": ESTIMATES.replace("worker", "who")}, r"estimates\.csv.*'worker'"),
        ({"estimates": ""}, r"estimates\.csv: there is no column 'worker'"),
        ({"items": ITEMS.splitlines()[0]}, r"items\.csv: there are no rows"),
        ({"estimates": ESTIMATES + "w00,3\n"}, r"estimates\.csv:5: .*4 fields"),
        ({"estimates": ESTIMATES + "w00,3,0,9,9\n"}, r"estimates\.csv:5: .*4 fields"),
        ({"estimates": ESTIMATES.replace("60", "x")}, r"estimates\.csv:4: the estimate x"),
        ({"estimates": ESTIMATES.replace("60", "6_0")}, r"estimates\.csv:4: the estimate 6_0"),
        ({"items": ITEMS.replace("75.5", "")}, r"items\.csv:3: the price_geomean \(blank\)"),
    ],
)
def test_a_damaged_table_is_refused_with_the_place(read, tables, text):
    with pytest.raises(DataFormatError, match=text):
        read(**tables)


def test_an_answer_about_an_unknown_item_is_refused(read):
    with pytest.raises(DataFormatError, match=r"item 7 is not in items\.csv"):
        read(estimates=ESTIMATES.replace("w00,3", "w00,7"))


def test_absent_data_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"items\.csv.*crowd_prices"):
        crowd_prices()


def test_the_prices_have_their_documented_size(data_root):
    crowd = crowd_prices()
    assert (crowd.num_workers, crowd.num_items, len(crowd.answer)) == (30, 50, 4888)
    assert len(set(zip(crowd.worker.tolist(), crowd.item.tolist()))) == 1453
    assert crowd.names[0] == "42 inch ceiling fan"
    assert_close(crowd.truth[0].item(), math.log(75.9783))


def test_the_prices_have_their_documented_baselines(data_root):
    """The README of the data: squared error of item means 0.3467, of item medians 0.3667."""
    crowd = crowd_prices()
    answers = [crowd.answer[crowd.item == i] for i in range(crowd.num_items)]
    mean = torch.stack([a.mean() for a in answers])
    median = torch.stack([a.quantile(0.5) for a in answers])
    assert_close((mean - crowd.truth).square().mean().item(), 0.3467, rtol=0, atol=1e-4)
    assert_close((median - crowd.truth).square().mean().item(), 0.3667, rtol=0, atol=1e-4)
    assert_close(
        torch.corrcoef(torch.stack([mean, crowd.truth]))[0, 1].item(), 0.839, rtol=0, atol=1e-3
    )
