"""Searches around BERT-tiny on the IMDb reviews, on as many processes as share a GPU well.

    python bench/search/run.py --data DATA/imdb --model MODELS/bert-tiny --out mase_output/search

DATA/imdb has the token arrays (tokens/train.npz, tokens/test.npz), MODELS/bert-tiny the pretrained
model. Experiments: (1) architectures by grid, random and TPE, (2) compression-aware search, (3) a
fixed-point width for each layer, (4) every number format, (5) formats mixed, (6) accuracy against
average bits. Points are chosen on reviews held out of the training set; those chosen are then
trained on all of it and measured on the test set, for each seed.

All is kept in <out>: studies in experiment-<n>.journal, test results in finals-<worker>.jsonl. Run
the same command again and it goes on where it stopped. `report.py` makes tables and figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from experiments import PRIORITY, StudyPlan, plans
from finals import Job, choose, is_done, measure
from subjects import Settings, Task

from chop.actions.records import append_record
from chop.actions.trials import failures
from chop.errors import SearchError
from chop.search import load_study, search

SHARE_OF_SEARCH = 0.65
"""Of the budget; the rest is for measuring on the test split."""


def main() -> int:
    """Search, then measure what was chosen."""
    options = parse_arguments()
    if options.smoke:
        options.limit, options.max_token_len, options.seeds = 96, 32, [0]
        options.trials, options.workers = 2, min(options.workers, 2)
    if options.worker is not None:
        return work(options)
    start = time.time()
    for phase, share in (("search", SHARE_OF_SEARCH), ("finals", 1.0)):
        if phase == "finals":
            prepare_finals(options)
        until = start + share * options.budget_seconds
        code = run_workers(options, phase, until)
        print(f"{phase}: done after {time.time() - start:.0f} s", flush=True)
        if code:
            return code
    save_studies(options)
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=Path, required=True, help="folder with tokens/*.npz")
    parser.add_argument("--model", type=Path, required=True, help="folder of the pretrained model")
    parser.add_argument("--out", type=Path, default=Path("mase_output/search"))
    parser.add_argument("--experiment", type=int, action="append", choices=range(1, 7))
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--trials", type=int, help="at most so many in each study")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budget-seconds", type=float, default=1e9)
    parser.add_argument("--limit", type=int, help="use so many reviews of each split")
    parser.add_argument("--max-token-len", type=int, default=512)
    parser.add_argument("--smoke", action="store_true", help="minutes on a CPU, few reviews")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--phase", choices=("search", "finals"), help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_workers(options: argparse.Namespace, phase: str, until: float) -> int:
    """As many processes as asked for, which share studies and jobs through files."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    own = ["--phase", phase, "--until", str(until)]
    running = [
        subprocess.Popen([sys.executable, *sys.argv, *own, "--worker", str(i)], env=environment)
        for i in range(options.workers)
    ]
    return max(process.wait() for process in running)


def work(options: argparse.Namespace) -> int:
    """What one process does in its phase."""
    settings = Settings(
        options.data, options.model, options.out, options.limit, options.max_token_len
    )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    task = Task(settings)
    {"search": search_all, "finals": measure_all}[options.phase](options, task)
    return 0


# -- searching ----------------------------------------------------------------------------------


def chosen_plans(options: argparse.Namespace) -> list[StudyPlan]:
    """The studies asked for."""
    wanted = options.experiment or range(1, 7)
    return [plan for plan in plans() if plan.experiment in wanted]


def storage_of(options: argparse.Namespace, plan: StudyPlan) -> Path:
    """Where the studies of an experiment are kept."""
    return Path(options.out / f"experiment-{plan.experiment}.journal")


def search_all(options: argparse.Namespace, task: Task) -> None:
    """Take part in every study, the most telling first: time may end before they do."""
    for plan in sorted(chosen_plans(options), key=lambda plan: PRIORITY.index(plan.experiment)):
        left = options.until - time.time()
        if left > 0:
            run_study(options, task, plan, left)


def run_study(options: argparse.Namespace, task: Task, plan: StudyPlan, left: float) -> None:
    """Evaluate points of a study until it has enough or time is up."""
    evaluator = plan.evaluator(task)
    size = evaluator.space.size
    trials = min(n for n in (plan.trials, options.trials, size) if n is not None)
    start = time.monotonic()
    result = search(
        evaluator.space,
        evaluator,
        plan.objectives,
        trials=trials,
        name=plan.name,
        sampler=plan.sampler,
        storage=storage_of(options, plan),
        directory=options.out / "trials" / plan.name,
        timeout=left,
        initial=plan.initial(evaluator.space)[:trials],
    )
    done = [t["values"]["accuracy"] for t in result.trials if t["state"] == "complete"]
    failed = [t["reason"] for t in failures(result.trials)]
    if options.worker == 0 or failed:
        best = f"{max(done):.4f}" if done else "none"
        seconds = time.monotonic() - start
        said = f"; {len(failed)} failed, the last: {failed[-1]}" if failed else ""
        print(f"{plan.name}: {len(done)} trials, best {best}, {seconds:.0f} s{said}", flush=True)


def load_studies(options: argparse.Namespace) -> dict[str, Any]:
    """The studies that exist, as records."""
    found = {}
    for plan in chosen_plans(options):
        storage = storage_of(options, plan)
        if storage.is_file():
            try:
                found[plan.name] = load_study(plan.name, storage)
            except SearchError as error:
                print(error, flush=True)
    return found


def save_studies(options: argparse.Namespace) -> None:
    """Write study.json and trials.csv of each study."""
    for name, result in load_studies(options).items():
        result.save(options.out / "studies" / name)


# -- measuring on the test split ----------------------------------------------------------------


def prepare_finals(options: argparse.Namespace) -> None:
    """Write down the jobs; claims of an earlier run are void."""
    studies = {name: result.record for name, result in load_studies(options).items()}
    jobs = choose(chosen_plans(options), studies, options.seeds)
    missing = [vars(job) for job in jobs if not is_done(options.out, job)]
    (options.out / "jobs.json").write_text(json.dumps(missing, indent=1))
    shutil.rmtree(options.out / "claims", ignore_errors=True)
    (options.out / "claims").mkdir()
    print(f"{len(missing)} of {len(jobs)} measurements on the test split are to be made")


def measure_all(options: argparse.Namespace, task: Task) -> None:
    """Measure every job that no other worker has taken."""
    jobs = [Job(**job) for job in json.loads((options.out / "jobs.json").read_text())]
    by_name = {plan.name: plan for plan in plans()}
    for number, job in enumerate(jobs):
        if time.time() > options.until:
            return
        if is_done(options.out, job) or not claim(options.out / "claims" / str(number)):
            continue
        start = time.monotonic()
        measured = measure(task, job, by_name.get(job.study))
        seconds = round(time.monotonic() - start, 2)
        record = {**job.key, **measured, "seconds": seconds, **facts(task)}
        append_record(options.out / f"finals-{options.worker}.jsonl", record)
        shown = f"{job.study}, {job.choice}, seed {job.seed}"
        print(f"{shown}: test {measured['test']:.4f}, {seconds} s", flush=True)


def claim(file: Path) -> bool:
    """Whether this process takes the job: it is the first, or took it before it started again."""
    try:
        with file.open("x") as opened:
            opened.write(str(os.getpid()))
    except FileExistsError:
        return file.read_text() == str(os.getpid())
    return True


def facts(task: Task) -> dict[str, Any]:
    """On what it was measured."""
    on_gpu = task.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
        "reviews": [len(task.reviews(part)) for part in ("whole", "test")],
    }


if __name__ == "__main__":
    sys.exit(main())
