"""Where a study lives: a SQLite file, a journal file or a PostgreSQL server.

Beside what Optuna's storages do, a store here has a lock that every worker on it shares and that
a killed one lets go of, writes that belong together in one step, and heartbeats.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import logging
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

from chop.errors import ConfigError, MissingDependencyError, SearchError
from chop.files import drop_torn_line
from chop.search.optuna_private import (
    BaseJournalFileLock,
    insert_parameters,
    set_attributes,
    stale_trial_ids,
    study_id,
    trial_id,
)

JOURNAL_SUFFIX = ".journal"
POSTGRES = ("postgresql", "postgres")
GRACE = 3
"""Heartbeats a worker on another machine may miss before its trial is given to another."""
HEARTBEAT = "heartbeat"
LOCK_WAIT = 60.0
"""Seconds SQLite waits for another process to finish its write."""
_DAMAGE = (
    *(sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, ValueError, TypeError, AttributeError),
    *(LookupError, AssertionError, RuntimeError, ArithmeticError, optuna.exceptions.OptunaError),
)
"""What Optuna and SQLAlchemy raise on rows that make no sense."""
Parameter: TypeAlias = tuple[str, float, BaseDistribution]
"""Name, value as Optuna stores it, distribution."""


class FileLock(BaseJournalFileLock):
    """One holder at a time among all processes that name the same file; a kill lets go of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: int | None = None

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._held = descriptor
        return True

    def release(self) -> None:
        """Give the lock back."""
        assert self._held is not None, f"{self._path}: released without being held"
        descriptor, self._held = self._held, None
        os.close(descriptor)


class AdvisoryLock:
    """The same, kept by a PostgreSQL server for the connection that asked."""

    def __init__(self, engine: sqlalchemy.Engine, name: str) -> None:
        self._engine = engine
        self._key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
        self._connection: sqlalchemy.Connection | None = None

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        connection = self._engine.connect()
        connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": self._key})
        self._connection = connection
        return True

    def release(self) -> None:
        """Give the lock back."""
        assert self._connection is not None, "released without being held"
        connection, self._connection = self._connection, None
        with connection:
            unlock = sqlalchemy.text("SELECT pg_advisory_unlock(:key)")
            connection.execute(unlock, {"key": self._key})


class Store:
    """An Optuna storage with the lock of its workers."""

    def __init__(self, storage: BaseStorage, lock: FileLock | AdvisoryLock, shown: str) -> None:
        self.storage, self.shown = storage, shown
        self._lock = lock

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock: what is read inside is true until the end of the block."""
        self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def write_params(self, trial_id: int, params: Sequence[Parameter]) -> None:
        """Write all of a trial's parameters, or none."""
        raise NotImplementedError

    def write_attributes(self, trial_id: int, attributes: Mapping[str, Any]) -> None:
        """Write all of these attributes of a trial, or none."""
        raise NotImplementedError

    def beat(self, trial_id: int) -> None:
        """Say that the worker of this trial lives."""
        raise NotImplementedError

    def silent(self, study_id: int, running: Sequence[FrozenTrial]) -> set[int]:
        """The ids of those `running` whose worker has not said so for long."""
        raise NotImplementedError


class SqlStore(Store):
    """A database: writes that belong together are one transaction."""

    def __init__(self, backend: RDBStorage, lock: FileLock | AdvisoryLock, shown: str) -> None:
        super().__init__(optuna.storages.get_storage(backend), lock, shown)
        self._backend = backend

    def write_params(self, trial_id: int, params: Sequence[Parameter]) -> None:
        """One statement for all of them: a write for each would cost more than choosing them."""
        rows = [
            {
                "trial_id": trial_id,
                "param_name": name,
                "param_value": value,
                "distribution_json": optuna.distributions.distribution_to_json(distribution),
            }
            for name, value, distribution in params
        ]
        if rows:
            insert_parameters(self._backend, rows)

    def write_attributes(self, trial_id: int, attributes: Mapping[str, Any]) -> None:
        """One transaction for all of them."""
        set_attributes(self._backend, trial_id, attributes)

    def beat(self, trial_id: int) -> None:
        """By the server's clock."""
        self._backend.record_heartbeat(trial_id)

    def silent(self, study_id: int, running: Sequence[FrozenTrial]) -> set[int]:
        """By the server's clock."""
        return stale_trial_ids(self._backend, study_id)


class _GroupingJournal(JournalFileBackend):
    """A journal that can hold entries back, to write them all at once."""

    held: list[dict[str, Any]] | None = None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self.held is None:
            super().append_logs(logs)
        else:
            self.held.extend(logs)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        self.held = []
        try:
            yield
        finally:
            entries, self.held = self.held, None
        if entries:
            self.append_logs(entries)


class JournalStore(Store):
    """A journal file: every entry is a line, and the heartbeat is an attribute of the trial."""

    def __init__(self, backend: _GroupingJournal, lock: FileLock, shown: str, beat: int) -> None:
        super().__init__(JournalStorage(backend), lock, shown)
        self._backend, self._grace = backend, GRACE * beat

    def write_params(self, trial_id: int, params: Sequence[Parameter]) -> None:
        """One write for all of them."""
        with self._backend.together():
            for name, value, distribution in params:
                self.storage.set_trial_param(trial_id, name, value, distribution)

    def write_attributes(self, trial_id: int, attributes: Mapping[str, Any]) -> None:
        """One write for all of them."""
        with self._backend.together():
            for key, value in attributes.items():
                self.storage.set_trial_user_attr(trial_id, key, value)

    def beat(self, trial_id: int) -> None:
        """By this machine's clock."""
        self.storage.set_trial_user_attr(trial_id, HEARTBEAT, time.time())

    def silent(self, study_id: int, running: Sequence[FrozenTrial]) -> set[int]:
        """By this machine's clock: machines that share a file share the time closely enough."""
        oldest = time.time() - self._grace
        return {trial_id(t) for t in running if t.user_attrs.get(HEARTBEAT, 0.0) < oldest}


def open_store(where: str | Path, heartbeat_seconds: int = 60) -> Store:
    """The store at `where`: a path, `*.journal` for a journal, or a `postgresql://` URL."""
    text = str(where)
    scheme, separator, rest = text.partition("://")
    with quiet():
        if not separator:
            return _readable(_open_file(Path(text), heartbeat_seconds))
        if scheme == "sqlite":
            return _readable(_open_sqlite(Path(rest.removeprefix("/")), heartbeat_seconds))
        if scheme.split("+")[0] in POSTGRES:
            return _open_postgres(f"postgresql+psycopg://{rest}", heartbeat_seconds)
    raise ConfigError(
        f"storage: '{scheme}://' is not known. Allowed: a path (SQLite, or a journal where it ends "
        f"in '{JOURNAL_SUFFIX}'), sqlite:///path, postgresql://user@host/database."
    )


def _readable(store: Store) -> Store:
    """`store`, all of which can be read: a file that someone sent may be damaged or forged."""
    try:
        for study in store.storage.get_all_studies():
            store.storage.get_all_trials(study_id(study), deepcopy=False)
    except _DAMAGE as error:
        raise SearchError(f"storage '{store.shown}': damaged: {_last_line(error)}") from error
    return store


def is_on_this_machine(where: str | Path) -> bool:
    """Whether workers on another machine cannot reach the store: a SQLite file is for one."""
    text = str(where)
    return text.startswith("sqlite:") or not ("://" in text or text.endswith(JOURNAL_SUFFIX))


def _open_file(path: Path, beat: int) -> Store:
    return (_open_journal if path.suffix == JOURNAL_SUFFIX else _open_sqlite)(path, beat)


def _open_sqlite(path: Path, beat: int) -> SqlStore:
    _make_folder(path)
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    lock.acquire()  # two processes that create the tables at once would trip over each other
    try:
        backend = RDBStorage(
            f"sqlite:///{path}",
            engine_kwargs={"connect_args": {"timeout": LOCK_WAIT, "factory": _WriteAhead}},
            heartbeat_interval=beat,
            grace_period=GRACE * beat,
        )
    except _DAMAGE as error:
        raise SearchError(f"storage '{path}': not a study file: {_last_line(error)}") from error
    finally:
        lock.release()
    return SqlStore(backend, lock, str(path))


class _WriteAhead(sqlite3.Connection):
    """A commit is an append: safe against a kill, several times as fast, readers never wait."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


def _open_journal(path: Path, beat: int) -> JournalStore:
    _make_folder(path)
    write_lock = FileLock(path.with_name(f"{path.name}.write.lock"))
    write_lock.acquire()
    try:
        drop_torn_line(path)
    finally:
        write_lock.release()
    backend = _GroupingJournal(str(path), lock_obj=write_lock)
    try:
        return JournalStore(backend, FileLock(path.with_name(f"{path.name}.lock")), str(path), beat)
    except _DAMAGE as error:
        raise SearchError(f"storage '{path}': not a study file: {_last_line(error)}") from error


def _open_postgres(url: str, beat: int) -> SqlStore:
    try:
        importlib.import_module("psycopg")
    except ImportError as error:  # also where it is there and finds no libpq
        reason = str(error).partition("\n")[0]
        raise MissingDependencyError(
            f"storage: psycopg cannot be imported ({reason}), which a postgresql:// storage needs. "
            "Install it: pip install 'masegraph[cluster]'."
        ) from error
    shown = sqlalchemy.make_url(url).set(drivername="postgresql").render_as_string()
    engine = sqlalchemy.create_engine(url, pool_pre_ping=True, isolation_level="AUTOCOMMIT")
    lock = AdvisoryLock(engine, "mase search")
    try:
        lock.acquire()
        try:
            backend = RDBStorage(
                url,
                engine_kwargs={"pool_pre_ping": True},
                heartbeat_interval=beat,
                grace_period=GRACE * beat,
            )
        finally:
            lock.release()
    except (sqlalchemy.exc.SQLAlchemyError, RuntimeError) as error:
        raise SearchError(
            f"storage '{shown}': the server does not answer or refuses: {_first_line(error)} "
            "Check host, port, user, password and that the database exists."
        ) from error
    return SqlStore(backend, lock, shown)


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SearchError(f"storage '{path}': {error.strerror}.") from error
    check_is_file(path)


def check_is_file(path: Path) -> None:
    """Raise where a folder is at the place of a storage file."""
    if path.is_dir():
        raise ConfigError(f"storage '{path}': a folder. Allowed: a file.")


def _first_line(error: BaseException) -> str:
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _last_line(error: BaseException) -> str:
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's remarks on features it calls experimental and on studies it creates."""
    logger = logging.getLogger("optuna")
    before = logger.level
    logger.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            yield
        finally:
            logger.setLevel(before)
