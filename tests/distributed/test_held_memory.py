"""The memory that a plan predicts is the memory that processes hold."""

import pytest
from distributed.memory_jobs import MODELS, SPLITS, memory_job

from chop.distributed.held_memory import held_bytes, predicted_bytes
from chop.distributed.verify_plan import processes_of_run

FIRST = [("mlp", "2, fsdp"), ("bert", "2, best"), ("llama, fused attention", "2, megatron")]
ALL = [(model, split) for model in MODELS for split in SPLITS]


@pytest.mark.slow
@pytest.mark.parametrize("cases", [FIRST, ALL], ids=len)
def test_memory_is_predicted_within_ten_percent(cases):
    jobs = {case: memory_job(*case) for case in cases}
    for count in {processes_of_run(job) for job in jobs.values()}:
        some = {case: job for case, job in jobs.items() if processes_of_run(job) == count}
        for (case, job), ranks in zip(some.items(), held_bytes(list(some.values())), strict=True):
            predicted = predicted_bytes(job)
            for held in ranks:
                assert held.parameters == predicted["parameters"], case
                assert held.states == predicted["states"], case
                assert predicted["total"] == pytest.approx(held.total, rel=0.1), case
                assert predicted["activations"] == pytest.approx(held.activations, rel=0.1), case
