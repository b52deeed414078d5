"""Storage of studies: a SQLite file, a journal file or a PostgreSQL server.

A store extends an Optuna storage by a lock that all workers share and that a kill releases, by
atomic writes of several values, and by heartbeats.
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
"""Heartbeats that a worker on another machine may miss before its trial is free again."""
HEARTBEAT = "heartbeat"
LOCK_WAIT = 60.0
"""Seconds that SQLite waits for the write of another process."""
_DAMAGE = (
    *(sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, ValueError, TypeError, AttributeError),
    *(LookupError, AssertionError, RuntimeError, ArithmeticError, optuna.exceptions.OptunaError),
)
"""Errors of Optuna and SQLAlchemy on invalid rows."""
Parameter: TypeAlias = tuple[str, float, BaseDistribution]
"""Name, value as Optuna stores it, distribution."""


class FileLock(BaseJournalFileLock):
    """Lock among all processes that use the same file; the kernel releases it on a kill."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock."""
        assert self._descriptor is not None, f"{self._path}: released without being held"
        descriptor, self._descriptor = self._descriptor, None
        os.close(descriptor)


class AdvisoryLock:
    """Lock in a PostgreSQL server, bound to the connection that acquired it."""

    def __init__(self, engine: sqlalchemy.Engine, name: str) -> None:
        self._engine = engine
        self._key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
        self._connection: sqlalchemy.Connection | None = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        connection = self._engine.connect()
        connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": self._key})
        self._connection = connection
        return True

    def release(self) -> None:
        """Release the lock."""
        assert self._connection is not None, "released without being held"
        connection, self._connection = self._connection, None
        with connection:
            unlock = sqlalchemy.text("SELECT pg_advisory_unlock(:key)")
            connection.execute(unlock, {"key": self._key})


class Store:
    """Optuna storage with the lock of its workers."""

    def __init__(self, storage: BaseStorage, lock: FileLock | AdvisoryLock, shown: str) -> None:
        self.storage, self.shown = storage, shown
        self._lock = lock

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock: no other worker writes during the block."""
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
        """Record a heartbeat of the worker of this trial."""
        raise NotImplementedError

    def silent(self, study_id: int, running: Sequence[FrozenTrial]) -> set[int]:
        """Return the ids of those `running` whose heartbeats have stopped."""
        raise NotImplementedError


class SqlStore(Store):
    """Database store: atomic writes are transactions, heartbeats use the server's clock."""

    def __init__(self, backend: RDBStorage, lock: FileLock | AdvisoryLock, shown: str) -> None:
        super().__init__(optuna.storages.get_storage(backend), lock, shown)
        self._backend = backend

    def write_params(self, trial_id: int, params: Sequence[Parameter]) -> None:
        # one statement: one write per parameter would take longer than choosing them
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
        set_attributes(self._backend, trial_id, attributes)

    def beat(self, trial_id: int) -> None:
        self._backend.record_heartbeat(trial_id)

    def silent(self, study_id: int, running: Sequence[FrozenTrial]) -> set[int]:
        return stale_trial_ids(self._backend, study_id)


class _GroupingJournal(JournalFileBackend):
    """Journal that can collect entries, to write them all at once."""

    pending: list[dict[str, Any]] | None = None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self.pending is None:
            super().append_logs(logs)
        else:
            self.pending.extend(logs)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        self.pending = []
        try:
            yield
        finally:
            entries, self.pending = self.pending, None
        if entries:
            self.append_logs(entries)


class JournalStore(Store):
    """Journal file store: every entry is a line, and the heartbeat is an attribute of the trial.

    Heartbeats use the clock of each machine; they must agree to within a few heartbeats.
    """

    def __init__(self, backend: _GroupingJournal, lock: FileLock, shown: str, beat: int) -> None:
        super().__init__(JournalStorage(backend), lock, shown)
        self._backend, self._grace = backend, GRACE * beat

    def write_params(self, trial_id: int, params: Sequence[Parameter]) -> None:
        with self._backend.together():
            for name, value, distribution in params:
                self.storage.set_trial_param(trial_id, name, value, distribution)

    def write_attributes(self, trial_id: int, attributes: Mapping[str, Any]) -> None:
        with self._backend.together():
            for key, value in attributes.items():
                self.storage.set_trial_user_attr(trial_id, key, value)

    def beat(self, trial_id: int) -> None:
        self.storage.set_trial_user_attr(trial_id, HEARTBEAT, time.time())

    def silent(self, study_id: int, running: Sequence[FrozenTrial]) -> set[int]:
        oldest = time.time() - self._grace
        return {trial_id(t) for t in running if t.user_attrs.get(HEARTBEAT, 0.0) < oldest}


def open_store(where: str | Path, heartbeat_seconds: int = 60) -> Store:
    """Open the store at `where`: a path, `*.journal` for a journal, or a `postgresql://` URL."""
    text = str(where)
    scheme, separator, rest = text.partition("://")
    with quiet():
        if not separator:
            open_file = _open_journal if Path(text).suffix == JOURNAL_SUFFIX else _open_sqlite
            return _readable(open_file(Path(text), heartbeat_seconds))
        if scheme == "sqlite":
            return _readable(_open_sqlite(Path(rest.removeprefix("/")), heartbeat_seconds))
        if scheme.split("+")[0] in POSTGRES:
            return _open_postgres(f"postgresql+psycopg://{rest}", heartbeat_seconds)
    raise ConfigError(
        f"storage: '{scheme}://' is not known. Allowed: a path (SQLite, or a journal where it ends "
        f"in '{JOURNAL_SUFFIX}'), sqlite:///path, postgresql://user@host/database."
    )


def _readable(store: Store) -> Store:
    """Return `store` after reading all of it: a file from elsewhere may be damaged or forged."""
    try:
        for study in store.storage.get_all_studies():
            store.storage.get_all_trials(study_id(study), deepcopy=False)
    except _DAMAGE as error:
        raise SearchError(f"storage '{store.shown}': damaged: {_lines(error)[-1]}") from error
    return store


def is_on_this_machine(where: str | Path) -> bool:
    """Return True if workers on other machines cannot use the store: a SQLite file."""
    text = str(where)
    return text.startswith("sqlite:") or not ("://" in text or text.endswith(JOURNAL_SUFFIX))


def _open_sqlite(path: Path, beat: int) -> SqlStore:
    _make_folder(path)
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    lock.acquire()  # only one process may create the tables
    try:
        backend = RDBStorage(
            f"sqlite:///{path}",
            engine_kwargs={"connect_args": {"timeout": LOCK_WAIT, "factory": _WriteAhead}},
            heartbeat_interval=beat,
            grace_period=GRACE * beat,
        )
    except _DAMAGE as error:
        raise SearchError(f"storage '{path}': not a study file: {_lines(error)[-1]}") from error
    finally:
        lock.release()
    return SqlStore(backend, lock, str(path))


class _WriteAhead(sqlite3.Connection):
    """Connection with a write-ahead log: safe against a kill, faster, readers never wait."""

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
        raise SearchError(f"storage '{path}': not a study file: {_lines(error)[-1]}") from error


def _open_postgres(url: str, beat: int) -> SqlStore:
    try:
        importlib.import_module("psycopg")
    except ImportError as error:  # also if it is installed and finds no libpq
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
            f"storage '{shown}': the server does not answer or refuses: {_lines(error)[0]} "
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
    """Raise if `path` is a folder."""
    if path.is_dir():
        raise ConfigError(f"storage '{path}': a folder. Allowed: a file.")


def _lines(error: BaseException) -> list[str]:
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines or [type(error).__name__]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's warnings on experimental features and its log of new studies."""
    logger = logging.getLogger("optuna")
    before = logger.level
    logger.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            yield
        finally:
            logger.setLevel(before)
