"""What the tests of the search share: a PostgreSQL server of their own, and killing a search."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"


def _binaries():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    on_path = shutil.which("initdb")
    return Path(found[-1]) if found else Path(on_path).parent if on_path else None


@pytest.fixture(scope="session")
def postgres():
    """The URL of a database on a server that lives as long as the tests."""
    pytest.importorskip("psycopg", reason="needs masegraph[cluster]")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed; `make tools` takes it from the system")
    if os.getuid() == 0 and not os.stat(os.devnull).st_mode & 0o002:
        pytest.skip("only root may write to /dev/null, so no server can start: chmod 666 it")
    folder = Path(tempfile.mkdtemp(prefix="mase-postgres-"))  # where its own user may come
    data, sockets = folder / "data", folder / "run"
    sockets.mkdir()
    as_user = []
    if os.getuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        shutil.chown(sockets, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]

    def run(program, *arguments):
        command = [*as_user, str(binaries / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, text=True)

    run("initdb", "-D", str(data), "-U", "mase", "--auth=trust", "-E", "UTF8", "--no-sync")
    options = f"-c listen_addresses='' -k {sockets} -c fsync=off"
    run("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql://mase@/postgres?host={sockets}"
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture
def start(tmp_path):
    """Start a process that runs a search with the given arguments."""
    started = []

    def begin(arguments, workers=1):
        script = f"""
            import sys
            sys.path[:0] = [{str(SOURCE)!r}, {str(HERE)!r}]
            import toys
            from chop.search import search
            result = search(toys.SPACE, workers={workers}, {arguments})
            print(len(result.trials))
        """
        command = [sys.executable, "-c", textwrap.dedent(script)]
        process = subprocess.Popen(command, cwd=tmp_path)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
