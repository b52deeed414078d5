"""Jobs in forked processes: what goes over a limit is reported, and the others run."""

import time

import limited
import pytest
import torch
from covering import first_and_slow

SMALL = limited.Limits(memory=1 << 28, cpu=1.0, wall=4.0)


def _spin() -> None:
    while True:
        pass


def _wrap() -> None:
    try:
        torch.empty(1 << 40)
    except RuntimeError as error:
        raise ValueError("damaged file") from error


JOBS = {
    "plain": lambda: None,
    "touched": lambda: bytearray(1 << 29),
    "torch": lambda: torch.ones(1 << 28),
    "untouched": lambda: torch.empty(1 << 28),
    "wrapped": _wrap,
    "spin": _spin,
    "sleep": lambda: time.sleep(60),
    "input": input,
    "last": lambda: None,
}
EXPECTED = dict.fromkeys(JOBS, limited.OVER) | {
    "plain": "None",
    "input": "'y'",
    "last": "None",
}


def run(name: str) -> tuple[str, str]:
    try:
        return repr(JOBS[name]()), ""
    except (RuntimeError, ValueError) as error:
        return (limited.OVER if limited.ran_out_of_memory(error) else "error"), str(error)


@pytest.mark.parametrize("processes", first_and_slow([2, 1]))
def test_every_job_has_its_verdict(processes):
    names = list(JOBS)
    found = limited.run_all(names, run, processes=processes, limits=SMALL)
    assert {names[number]: word for number, (word, _) in found} == EXPECTED
