"""Result files that others wrote are checked before anything is made of them."""

import copy

import mutations
import pytest

from chop.actions.readers import check_hardware, check_study, check_sweep, read_study
from chop.errors import DataError


def changed(told, *path, value):
    told = copy.deepcopy(told)
    place = told
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return told


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("objectives",), {}, r"s.objectives: there are none"),
        (("objectives",), [], r"s.objectives: expected dict, got \[\]"),
        (("objectives", "bits"), "up", r"s.objectives.bits: 'up'. Allowed: maximize, minimize"),
        (("objectives", "bits"), [], r"s.objectives.bits: \[\]. Allowed: maximize, minimize"),
        (("name",), 3, r"s.name: expected str, got 3"),
        (("trials",), {}, r"s.trials: expected list"),
        (("trials", 1), 3, r"s.trials\[1\]: expected dict, got 3"),
        (("trials", 1, "number"), -1, r"trials\[1\].number: expected a number from 0 on"),
        (("trials", 1, "number"), True, r"trials\[1\].number: expected int, got True"),
        (("trials", 1, "number"), 2, r"trials\[2\].number: 2 is there twice"),
        (("trials", 1, "state"), None, r"trials\[1\].state: expected str"),
        (("trials", 1, "values"), {"bits": 1}, r"a complete trial has a value of 'accuracy'"),
        (("trials", 1, "values", "bits"), "4", r"values.bits: expected int or float, got '4'"),
        (("trials", 1, "params"), [], r"trials\[1\].params: expected dict"),
        (("trials", 1, "attributes"), None, r"trials\[1\].attributes: expected dict"),
        (("trials", 1, "attributes", "constraints"), 3, r"constraints: expected dict"),
        (("trials", 1, "attributes", "constraints", "small"), "x", r"constraints.small: expected"),
        (("importance",), {"width": "x"}, r"s.importance: expected int or float"),
        (("importance",), {"width": 1, "accuracy": {}, "x": {"y": 2}}, r"not both"),
    ],
)
def test_a_study_that_is_none_is_refused_where_it_is_wrong(path, value, words):
    with pytest.raises(DataError, match=words):
        check_study(changed(mutations.STUDY, *path, value=value), "s")


def test_a_study_of_ours_is_read(tmp_path):
    assert check_study(mutations.STUDY, "s") is mutations.STUDY
    with pytest.raises(DataError, match=r"s: key 'trials' is missing"):
        check_study({"objectives": {"x": "maximize"}}, "s")
    with pytest.raises(DataError, match=r"study.json: no such file"):
        read_study(tmp_path / "study.json")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (3, r"r\[0\]: expected dict, got 3"),
        ({}, r"r\[0\]: key 'sweep' is missing"),
        ({"sweep": "x"}, r"r\[0\].sweep: 'x'. Allowed: "),
        ({"sweep": "sparsity", "method": "random"}, r"r\[0\]: key 'sparsity' is missing"),
        ({**mutations.RECORDS[0], "sparsity": "half"}, r"r\[0\].sparsity: expected int or float"),
        ({**mutations.RECORDS[0], "after": [1]}, r"r\[0\].after: expected int or float"),
    ],
)
def test_records_of_no_sweep_are_refused(record, words):
    with pytest.raises(DataError, match=words):
        check_sweep([record], "r")


def test_records_of_a_sweep_are_read():
    assert check_sweep(mutations.RECORDS, "r") is mutations.RECORDS


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("stages",), 3, r"h.stages: expected list or dict"),
        (("stages", 0), 3, r"h.stages\[0\]: expected dict"),
        (("stages", 0, "cycles"), "4", r"stages\[0\].cycles: expected int"),
        (("inputs", 0), [], r"h.inputs: expected str"),
        (("streams", 0, "source"), "x", r"streams\[0\].source: there is no stage 'x'"),
        (("streams", 0), {}, r"streams\[0\]: key 'source' is missing"),
    ],
)
def test_a_report_of_no_hardware_is_refused(path, value, words):
    with pytest.raises(DataError, match=words):
        check_hardware(changed(mutations.HARDWARE, *path, value=value), "h")
