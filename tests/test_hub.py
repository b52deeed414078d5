import socket

import pytest
from huggingface_hub import constants

from chop.errors import HubError
from chop.hub import VARIABLES, locate


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """The hub cannot be reached, and nothing is cached."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)

    def refuse(*address):
        raise AssertionError(f"asked the network for {address}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path / "hub"


@pytest.mark.parametrize("kind", VARIABLES)
def test_without_a_network_one_error_names_both_ways_to_a_local_copy(no_network, kind):
    with pytest.raises(HubError) as caught:
        locate("someone/thing", kind)
    message = str(caught.value)
    assert f"{kind} 'someone/thing': no local copy is known and the hub" in message
    assert "Give the path of a folder in place of the name" in message
    assert f"set {VARIABLES[kind]} to a folder that holds 'thing'" in message


def test_a_folder_is_its_own_place(tmp_path):
    place = locate(tmp_path, "model")
    assert (place.name, place.is_local, place.is_folder) == (str(tmp_path), True, True)


@pytest.mark.parametrize("kept_as", ["someone/thing", "thing"])
def test_the_variable_names_a_shelf_of_local_copies(no_network, monkeypatch, tmp_path, kept_as):
    (tmp_path / "shelf" / kept_as).mkdir(parents=True)
    monkeypatch.setenv("MASE_DATA", str(tmp_path / "shelf"))
    assert locate("someone/thing", "dataset").name == str(tmp_path / "shelf" / kept_as)


def test_a_cached_copy_serves_without_a_network(no_network):
    (no_network / "models--someone--thing").mkdir(parents=True)
    place = locate("someone/thing", "model")
    assert (place.name, place.is_local, place.is_folder) == ("someone/thing", True, False)


def test_a_path_that_is_not_there_does_not_go_to_the_hub(tmp_path):
    with pytest.raises(HubError, match=r"dataset '.*nothing': no such folder"):
        locate(tmp_path / "nothing", "dataset")
