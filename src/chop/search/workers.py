"""Parallel workers on one study: processes of this machine, or Ray actors on a cluster.

Each runs `chop.search.worker_loop` on the shared storage and owns only the trial it evaluates, so
any of them may die. The command of a process is

    python -m chop.search.workers PLAN NUMBER [PARENT]

where PLAN is the file that the search wrote; the same command joins from another machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle

from chop.errors import ConfigError, MissingDependencyError, SearchError
from chop.log import get_logger
from chop.registry import Registry
from chop.search.search_plan import WorkerPlan
from chop.search.study_storage import is_on_this_machine
from chop.search.worker_loop import INTERRUPTED, work

LOOK_SECONDS = 0.5
"""Seconds between the parent's checks of its workers."""
STOP_SECONDS = 30.0
"""Seconds that workers have, after an interrupt, to requeue their trials."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
BROKEN, STOPPED = 3, 4
"""Exit codes: the worker could not start; it stopped before all trials were done."""
_log = get_logger(__name__)

EngineFunction: TypeAlias = Callable[[WorkerPlan, int, Callable[[], None]], str | None]
"""`(plan, workers, report) -> reason if it stopped early`."""
ENGINES: Registry[EngineFunction] = Registry("engine")
"""Engines by name. To add one, decorate an `EngineFunction` with `@ENGINES.entry`."""


def pack(plan: WorkerPlan) -> bytes:
    """Return the plan as bytes that another process can load."""
    try:
        return bytes(cloudpickle.dumps({"path": sys.path, "plan": cloudpickle.dumps(plan)}))
    except Exception as error:
        raise ConfigError(
            f"search: evaluate {plan.evaluate!r} or the space cannot be sent to a worker "
            f"({type(error).__name__}: {error}). Define it at the top of a module and let it open "
            "what it needs by itself, name it as 'module:function', or use workers=1."
        ) from error


def unpack(packed: bytes) -> WorkerPlan:
    """Load a plan, and extend the import path by that of its author."""
    content = pickle.loads(packed)
    sys.path[:] = [*sys.path, *(p for p in content["path"] if p not in sys.path)]
    return pickle.loads(content["plan"])  # type: ignore[no-any-return]


@ENGINES.entry("processes")
def run_processes(plan: WorkerPlan, workers: int, report: Callable[[], None]) -> str | None:
    """Run the plan on `workers` processes of this machine and wait for them."""
    plan.directory.mkdir(parents=True, exist_ok=True)
    file = plan.directory / f"plan-{os.getpid()}.pkl"
    file.write_bytes(pack(plan))
    children = [_start(file, number, plan.directory) for number in range(workers)]
    try:
        while living := [child for child in children if child.poll() is None]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                living[0].wait(LOOK_SECONDS)
            report()
    except KeyboardInterrupt:
        _interrupt(children)
        return INTERRUPTED
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
        file.unlink()
    return _verdict([child.returncode for child in children], plan)


def _start(file: Path, number: int, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "chop.search.workers", str(file), str(number)]
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    settings = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": path}
    with _log_file(folder, number).open("ab") as log:
        return subprocess.Popen(
            [*command, str(os.getpid())],
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # an interrupt reaches the parent alone, which passes it on
        )


def _log_file(folder: Path, number: int) -> Path:
    return folder / f"worker-{number}.log"


def _interrupt(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
    limit = time.monotonic() + STOP_SECONDS
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, limit - time.monotonic()))


def _verdict(codes: Sequence[int], plan: WorkerPlan) -> str | None:
    """Return the reason if the workers stopped early; raise if one could not start."""
    if BROKEN in codes:
        number = codes.index(BROKEN)
        text, file = _last_line(plan, number), _log_file(plan.directory, number)
        raise SearchError(f"worker {number} could not work: {text} (see {file})")
    if 0 in codes:  # it saw that all trials are done
        return None
    if STOPPED in codes:
        return _last_line(plan, codes.index(STOPPED))
    ends = ", ".join(str(code) for code in codes)
    return f"all {len(codes)} workers died (exit codes {ends}); start again to go on"


def _last_line(plan: WorkerPlan, number: int) -> str:
    text = _log_file(plan.directory, number).read_text(errors="replace")
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


@ENGINES.entry("ray")
def run_ray(plan: WorkerPlan, workers: int, report: Callable[[], None]) -> str | None:
    """Run the plan on `workers` Ray actors on the current cluster.

    An actor has one core, or a placement group with the devices of a trial. Ray only starts the
    actors: the study stays in its storage.
    """
    with _ray_cluster(workers * plan.devices) as ray:
        check_reach(plan.storage, len(ray.nodes()))
        if plan.devices > 1:
            check_room(plan.devices, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        packed = pack(plan)
        places = [RayPlace(ray, plan.devices) for _ in range(workers)]
        try:
            waiting = {place.start(packed, i): place for i, place in enumerate(places)}
            ends: list[Any] = []
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=LOOK_SECONDS)
                for each in done:  # its devices are free for the next actor
                    waiting.pop(each).remove()
                    ends.append(_ray_end(ray, each))
                report()
        finally:
            for place in places:
                place.remove()
    if (True, None) in ends:  # it saw that all trials are done
        return None
    reason: str = ends[0][1]
    return reason


class RayPlace:
    """Actor of a Ray cluster, with the devices of its trials reserved together."""

    def __init__(self, ray: Any, devices: int) -> None:
        self.ray, self.devices = ray, devices
        self.group: Any = None
        self.actor: Any = None

    def start(self, packed: bytes, number: int) -> Any:
        """Start the work; return its result to wait for. It begins when the devices are free."""
        options: dict[str, Any] = {"num_cpus": self.devices, "max_restarts": 0}
        if self.devices > 1:
            options |= self._reserve()
        self.actor = self.ray.remote(**options)(RayWorker).remote()
        return self.actor.work.remote(packed, number)

    def _reserve(self) -> dict[str, Any]:
        """Ask for a placement group: one machine has all devices of a trial, or it waits."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        has_gpus = self.ray.cluster_resources().get("GPU", 0) > 0
        bundle = {"CPU": self.devices, **({"GPU": self.devices} if has_gpus else {})}
        self.group = placement_group([bundle], strategy="STRICT_PACK")
        strategy = PlacementGroupSchedulingStrategy(
            self.group, placement_group_capture_child_tasks=True
        )
        return {"num_gpus": bundle.get("GPU", 0), "scheduling_strategy": strategy}

    def remove(self) -> None:
        """End the actor, and return its devices to the cluster."""
        if self.group is not None:
            from ray.util.placement_group import remove_placement_group

            self.ray.kill(self.actor)
            remove_placement_group(self.group)
            self.group = None


def check_room(devices: int, machines: Sequence[Mapping[str, float]]) -> None:
    """Raise if no machine of a cluster has the devices of one trial; `machines`: resources."""
    kind = "GPU" if any(machine.get("GPU", 0) for machine in machines) else "CPU"
    most = int(max((machine.get(kind, 0) for machine in machines), default=0))
    if most < devices:
        raise ConfigError(
            f"search: devices is {devices}, and no machine of the Ray cluster has more than {most} "
            f"{kind}s. Allowed: at most {most}."
        )


def check_reach(storage: str, machines: int) -> None:
    """Raise if workers on other machines cannot use the storage."""
    if machines > 1 and is_on_this_machine(storage):
        raise ConfigError(
            f"search: storage '{storage}' is a file of this machine and the cluster has "
            f"{machines}. Give a postgresql:// URL or a *.journal file that they share."
        )


class RayWorker:
    """Worker as a Ray actor, which lives as long as the search."""

    def work(self, packed: bytes, number: int) -> str | None:
        """Run the loop of a worker."""
        _one_thread()
        return work(unpack(packed), number)


def _ray_end(ray: Any, done: Any) -> tuple[bool, str | None]:
    try:
        return True, ray.get(done)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        raise SearchError(f"a Ray worker could not work: {cause}") from error
    except ray.exceptions.RayActorError:
        return False, "all Ray workers died; start again to go on"


@contextlib.contextmanager
def _ray_cluster(cores: int) -> Iterator[Any]:
    try:
        # a local cluster for one search needs no authentication
        if "RAY_ADDRESS" not in os.environ:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            "search: ray is not installed, and engine 'ray' needs it. "
            "Install it: pip install 'masegraph[cluster]', or use engine='processes'."
        ) from error
    if ray.is_initialized():
        yield ray
        return
    path = os.pathsep.join(p for p in sys.path if p)
    options: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}
    if "RAY_ADDRESS" not in os.environ:
        options |= {"num_cpus": max(cores, os.cpu_count() or 1), "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    try:
        yield ray
    finally:
        ray.shutdown()


def _one_thread() -> None:
    os.environ.update(dict.fromkeys(THREADS, "1"))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _die_with(parent: int) -> None:
    """End this process when its parent is gone: its trial is then free."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str]) -> int:
    """Run a worker process and return its exit code."""
    file, number, *parent = arguments
    if parent:
        _die_with(int(parent[0]))
    try:
        plan = unpack(Path(file).read_bytes())
        _one_thread()
        reason = work(plan, int(number))
    except KeyboardInterrupt:
        return 0
    except Exception as error:  # the parent reads the last line
        _log.error("%s: %s", type(error).__name__, error, exc_info=True)
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return BROKEN
    if reason is not None:
        sys.stderr.write(reason + "\n")
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
