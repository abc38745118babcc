import pytest
import torch
from torch.testing import assert_close

from pyrograph.datasets import tabular
from pyrograph.errors import DataFormatError, DataNotFound, OptionError

#: Rows, variables, and mean and standard deviation of the first variable, from the READMEs.
DOCUMENTED = {
    "iris": (150, 4, 5.84333, 0.828066),
    "banknote": (1372, 4, 0.433735, 2.84276),
    "istanbul": (536, 9, 0.00162888, 0.0162643),
    "seeds": (210, 7, 14.8475, 2.9097),
    "yeast": (1484, 8, 0.500121, 0.137299),
    "wdbc": (569, 30, 14.1273, 3.52405),
    "letter": (20000, 16, 4.02355, 1.91321),
    "poker": (25010, 10, 2.50876, 1.11648),
    "climate": (540, 18, 0.500026, 0.288939),
}
IRIS = """a,b,species
1,10,x
2,30,y
3,80,x
"""


@pytest.fixture
def read(monkeypatch, tmp_path):
    """The table "iris" with this text in its place."""
    (tmp_path / "uci_iris").mkdir()
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))

    def read(text=IRIS, **options):
        (tmp_path / "uci_iris" / "iris.csv").write_text(text)
        return tabular("iris", **options)

    return read


def test_labels_are_left_out_and_columns_keep_their_order(read):
    raw = read(standardise=False)
    assert_close(raw, torch.tensor([[1.0, 10.0], [2.0, 30.0], [3.0, 80.0]]))
    assert_close(
        read("species,b,a\nx,1,2\ny,3,4\n", standardise=False),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    )


def test_columns_are_standardised_unless_they_are_asked_for_as_they_are(read):
    assert_close(read()[:, 0], torch.tensor([-1.0, 0.0, 1.0]))
    assert_close(read().mean(0), torch.zeros(2))
    assert_close(read().std(0), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_have_the_default_dtype(read, dtype):
    torch.set_default_dtype(dtype)
    assert read().dtype == dtype


@pytest.mark.parametrize(
    "field",
    ["red", "", "nan", "inf", "1_0"],  # the last is ten to Python
)
def test_a_field_that_is_no_number_is_refused_with_its_line_and_column(read, field):
    with pytest.raises(DataFormatError, match=rf"iris\.csv:3: the b {field}.* is no finite number"):
        read(IRIS.replace("30", field))


def test_a_short_line_is_refused_with_its_number(read):
    with pytest.raises(DataFormatError, match=r"iris\.csv:4: 2 fields; the header has 3"):
        read(IRIS.replace("3,80,x", "3,80"))


def test_a_table_without_its_label_column_is_refused(read):
    with pytest.raises(DataFormatError, match="no column 'species'"):
        read(IRIS.replace("species", "kind"))


@pytest.mark.parametrize("text", ["", "sepal,petal,species\n"])
def test_a_table_without_rows_is_refused(read, text):
    with pytest.raises(DataFormatError, match=r"iris\.csv: there are no rows"):
        read(text)


def test_a_name_is_a_string():
    with pytest.raises(OptionError, match=r"no table \['iris'\]"):
        tabular(["iris"])


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(OptionError, match=r"'mnist'.*iris.*climate"):
        tabular("mnist")


def test_absent_data_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"seeds\.csv.*uci_seeds"):
        tabular("seeds")


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_tables_are_the_documented_ones(data_root, name):
    rows, variables, mean, sd = DOCUMENTED[name]
    values = tabular(name, standardise=False)
    assert values.shape == (rows, variables)
    assert_close(values[:, 0].mean().item(), mean, rtol=1e-5, atol=0)
    assert_close(values[:, 0].std().item(), sd, rtol=1e-5, atol=0)
    assert bool(tabular(name).isfinite().all())
