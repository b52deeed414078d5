"""`mase studies`: list searches, show one, open its dashboard.

The list reads the files that searches write; it needs neither torch nor Optuna.
"""

from __future__ import annotations

import contextlib
import threading
import tomllib
import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.actions.study_files import check_study
from chop.actions.trials import pareto_front
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL, STUDY_NAMES
from chop.cli.units import titled
from chop.errors import ConfigError, MissingDependencyError
from chop.files import read_json
from chop.registry import suggest

EXAMPLES = ("mase studies", "mase studies out/search", "mase studies out/search --dashboard")
RECORD = "study.json"
STORAGES = "study/*/study.db"
"""Default storage of the trials of a search."""
HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class StudiesConfig:
    """Studies."""

    study: Annotated[str | None, "Folder or name of one study. Default: list all."] = field(
        default=None, metadata={**POSITIONAL, "lister": STUDY_NAMES}
    )
    root: Annotated[Path, "Folder to search."] = Path("out")
    names: Annotated[bool, "Print the folders only."] = False
    dashboard: Annotated[bool, "Serve the study to a browser until Ctrl-C."] = False
    port: Annotated[int, "Port of the dashboard."] = 8080
    browser: Annotated[bool, "Open the dashboard in the browser."] = True

    def __post_init__(self) -> None:
        if not 0 < self.port < 2**16:
            raise ConfigError(f"port: {self.port} is none. Allowed: 1 to 65535.")


@dataclass(frozen=True)
class StudyFolder:
    """Folder of a search and its study, which is None if the search did not end or is damaged."""

    folder: Path
    record: Mapping[str, Any] | None
    problem: str = ""
    """Reason why the record cannot be read."""

    @property
    def storage(self) -> str | Path | None:
        """Storage of its trials."""
        with contextlib.suppress(OSError, ValueError):
            settings = tomllib.loads((self.folder / "config.toml").read_text()).get("search")
            place = settings.get("storage") if isinstance(settings, dict) else None
            if isinstance(place, str) and place != "NA":
                return place
        files = self.folder.glob(STORAGES)
        return max(files, key=lambda file: file.stat().st_mtime, default=None)


def run(config: StudiesConfig, session: Session) -> dict[str, Any]:
    """List studies, show one, or serve its dashboard."""
    if config.root.exists() and not config.root.is_dir():
        raise UsageError(f"studies.root: '{config.root}' is no folder.")
    studies = list(find_studies(config.root))
    if config.names:
        for each in studies:
            session.console.say(str(each.folder))
        return {"studies": [str(each.folder) for each in studies]}
    if config.study is None and not config.dashboard:
        rows = [summary(each) for each in studies]
        session.console.table(rows)
        for each in studies:
            if each.problem:
                session.console.note(f"damaged: {each.problem}")
        if not rows:
            session.console.say(f"no study below {config.root}/: `mase search MODEL` makes one.")
        return {"studies": rows}
    chosen = _choose(config, studies)
    if config.dashboard:
        return _serve(config, chosen, session)
    return _show(chosen, session)


def find_studies(root: Path) -> Iterator[StudyFolder]:
    """Yield the folders below `root`, and `root` itself, with a study, finished or not."""
    folders = {file.parent for file in root.rglob(RECORD) if file.is_file()}
    folders |= {file.parents[2] for file in root.rglob(STORAGES) if file.is_file()}
    for folder in sorted(folders):
        yield _read(folder)


def _read(folder: Path) -> StudyFolder:
    file = folder / RECORD
    if not file.is_file():
        return StudyFolder(folder, None)
    try:
        return StudyFolder(folder, check_study(read_json(file, UsageError), str(file), UsageError))
    except UsageError as error:
        return StudyFolder(folder, None, str(error))


def summary(study: StudyFolder) -> dict[str, Any]:
    """Return a row of the list."""
    if study.record is None:
        state = "damaged" if study.problem else "unfinished"
        return {"study": str(study.folder), "name": "", "trials": state, "best": ""}
    trials, objectives = study.record["trials"], study.record["objectives"]
    done = [t["values"] for t in trials if t["state"] == "complete"]
    best = ", ".join(
        f"{name} {_best(name, way, done):.4g}" for name, way in objectives.items() if done
    )
    applied = study.record.get("applied")
    return {
        "study": str(study.folder),
        "name": study.record.get("name", ""),
        "trials": f"{len(done)} of {len(trials)}",
        "best": best,
        "sampler": str(study.record.get("sampler", "")),
        "applied": "" if applied is None else f"trial {applied}",
    }


def _best(name: str, way: str, done: list[Mapping[str, float]]) -> float:
    values = [row[name] for row in done if name in row]
    return (max if way == "maximize" else min)(values, default=float("nan"))


def _choose(config: StudiesConfig, studies: list[StudyFolder]) -> StudyFolder:
    """Return the study of the configuration, or the newest."""
    name = (config.study or "").rstrip("/")
    elsewhere = list(find_studies(Path(name))) if name else []
    if len(elsewhere) == 1:
        return elsewhere[0]
    if not studies:
        raise UsageError(f"studies: no study below '{config.root}'. `mase search` makes one.")
    if config.study is None:
        return max(studies, key=lambda each: each.folder.stat().st_mtime)
    by_folder = {str(each.folder): each for each in studies}
    by_name = {str(e.record.get("name")): e for e in studies if e.record is not None}
    choices = {**by_name, **by_folder}
    if name in choices:
        return choices[name]
    raise UsageError(f"studies: no study '{name}'. {suggest(name, choices)}")


def _show(study: StudyFolder, session: Session) -> dict[str, Any]:
    if study.problem:
        raise UsageError(study.problem)
    if study.record is None:
        raise UsageError(
            f"studies: the search in '{study.folder}' did not end. Run it again to go on, or give "
            "--dashboard to look at its trials."
        )
    front = pareto_front(study.record["trials"], study.record["objectives"])
    session.console.say(f"{study.folder}: {study.record.get('name')}, not beaten by any other:")
    rows = [{"trial": trial["number"], **trial["values"]} for trial in front]
    session.console.table([titled(row) for row in rows], floatfmt=".4g")
    return {"study": str(study.folder), "front": front}


def _serve(config: StudiesConfig, study: StudyFolder, session: Session) -> dict[str, Any]:
    """Serve the dashboard until Ctrl-C."""
    storage = study.storage
    if storage is None:
        raise UsageError(
            f"studies: '{study.folder}' has its results, and no longer the storage of its trials. "
            f"`mase report --studies {study.folder} MODEL` draws them."
        )
    try:
        import optuna_dashboard
    except ImportError as error:
        raise MissingDependencyError(
            "studies: optuna-dashboard is not installed. "
            "Install it: pip install 'masegraph[dashboard]'."
        ) from error
    from chop.search.study_storage import open_store

    session.start_work()
    address = f"http://{HOST}:{config.port}/"
    session.console.say(f"{study.folder}: {address} (Ctrl-C ends it)")
    if config.browser:
        threading.Timer(1.0, webbrowser.open, [address]).start()
    backend = open_store(storage).storage
    with contextlib.suppress(KeyboardInterrupt):
        optuna_dashboard.run_server(backend, host=HOST, port=config.port)
    return {"study": str(study.folder), "address": address}
