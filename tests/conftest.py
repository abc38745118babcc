"""What every test can count on: float64, validation on, a fixed seed, a headless backend."""

import matplotlib
import pyro
import pytest
import torch
from hypothesis import settings

from pyrograph.datasets import data_root as find_data_root
from pyrograph.errors import DataNotFound

matplotlib.use("Agg")
if not torch.accelerator.is_available():
    # for each kind of device that is not there torch.manual_seed formats the stack, a millisecond
    torch.manual_seed = torch.default_generator.manual_seed
# The same examples on every run, however slow the machine.
settings.register_profile("pyrograph", deadline=None, derandomize=True)
settings.load_profile("pyrograph")


@pytest.fixture(autouse=True)
def clean_state():
    """The same global state before each test, put back after it."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    pyro.enable_validation(True)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture
def data_root():
    """The folder of the real data sets; the test is skipped where none is named."""
    try:
        return find_data_root()
    except DataNotFound as error:
        pytest.skip(str(error))


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
