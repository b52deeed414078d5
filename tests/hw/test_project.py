from pathlib import Path

import pytest

from chop.hw.flow import project


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(project, "_emitted", [])


def test_the_latest_project_is_the_one_emitted_last():
    assert project.latest_project() == project.DEFAULT_PROJECT
    project.remember_project(Path("a"))
    project.remember_project(Path("b"))
    assert project.latest_project() == Path("b")
