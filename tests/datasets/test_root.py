import pytest

from pyrograph.datasets import bayesian_network, data_root, uwb_network
from pyrograph.errors import DataNotFound


def test_an_unset_variable_is_named_in_the_error(monkeypatch):
    monkeypatch.delenv("PYROGRAPH_DATA", raising=False)
    with pytest.raises(DataNotFound, match=r"\$PYROGRAPH_DATA.*not set"):
        data_root()


def test_a_variable_that_names_no_folder_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataNotFound, match="not a folder"):
        data_root()


def test_a_missing_data_set_is_named_with_what_is_there(monkeypatch, tmp_path):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"nodes\.csv.*uwb_network.*no such folder"):
        uwb_network()
    (tmp_path / "bayesnets").mkdir()
    (tmp_path / "bayesnets" / "asia.bif").touch()
    with pytest.raises(DataNotFound, match=r"alarm\.bif.*asia\.bif"):
        bayesian_network("alarm")


def test_a_user_that_there_is_not_is_said(monkeypatch):
    monkeypatch.setenv("PYROGRAPH_DATA", "~no_such_user_here/data")
    with pytest.raises(DataNotFound, match="there is no such user"):
        data_root()
