import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from chop import native

SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'
LOAD = "import sys; from pathlib import Path; from chop import native; "
needs_compiler = pytest.mark.skipif(
    native.find_compiler() is None, reason="no C++ compiler here; install one to run this"
)


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("MASE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MASE_NATIVE", raising=False)
    native.load.cache_clear()
    path = tmp_path / "answer.cpp"
    path.write_text(SOURCE)
    yield path
    native.load.cache_clear()


def built_files() -> list[Path]:
    return sorted(native.cache_dir().iterdir())


@needs_compiler
def test_a_source_is_built_loaded_and_kept(source):
    assert native.load(source).answer() == 42
    (kept,) = built_files()
    native.load.cache_clear()
    written = kept.stat().st_mtime_ns
    assert native.load(source).answer() == 42
    assert kept.stat().st_mtime_ns == written


@needs_compiler
def test_checkouts_with_the_same_source_share_one_library(source, tmp_path):
    other = tmp_path / "elsewhere" / source.name
    other.parent.mkdir()
    other.write_text(source.read_text())
    assert [native.load(path).answer() for path in (source, other)] == [42, 42]
    assert len(built_files()) == 1


@needs_compiler
def test_a_changed_source_or_flag_is_another_library(source):
    native.load(source)
    native.load(source, ("-DOTHER",))
    source.write_text(SOURCE.replace("42", "43"))
    native.load.cache_clear()
    assert native.load(source).answer() == 43
    assert len(built_files()) == 3


@needs_compiler
def test_a_changed_file_that_is_included_is_another_library(source):
    header = source.with_name("constant.h")
    answers = []
    for value in (3, 4):
        header.write_text(f"constexpr int CONSTANT = {value};\n")
        source.write_text(
            '#include "constant.h"\nextern "C" __attribute__((visibility("default"))) '
            "int answer() { return CONSTANT; }\n"
        )
        native.load.cache_clear()
        answers.append(native.load(source).answer())
    assert answers == [3, 4]


@needs_compiler
def test_of_processes_that_build_at_the_same_time_one_compiles(source, tmp_path, monkeypatch):
    compiler = tmp_path / "compiler"
    count = 'case "$*" in *" -o "*) echo >> "$0.calls";; esac'
    compiler.write_text(f'#!/bin/sh\n{count}\nexec {native.find_compiler()} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    program = f"{LOAD}sys.exit(native.load(Path(sys.argv[1])).answer() != 42)"
    command = [sys.executable, "-c", program, str(source)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(built_files()) == 1
    assert len(Path(f"{compiler}.calls").read_text().splitlines()) == 1


@needs_compiler
def test_a_source_that_does_not_build_is_said_and_skipped(source, caplog):
    source.write_text("this is not C++\n")
    with caplog.at_level("WARNING", "chop.native"):
        native.get_logger("chop").propagate = True
        assert native.load(source) is None
    native.get_logger("chop").propagate = False
    assert "answer.cpp: cannot be built; using the PyTorch path." in caplog.text


@needs_compiler
def test_the_next_set_of_flags_is_tried_where_one_fails(source):
    assert native.load(source, ("-no-such-flag",), ()).answer() == 42


def test_without_a_compiler_there_is_no_library(source, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level("WARNING", "chop.native"):
        native.get_logger("chop").propagate = True
        assert native.load(source) is None
    native.get_logger("chop").propagate = False
    assert "answer.cpp: no C++ compiler found; using the PyTorch path." in caplog.text


def test_native_code_can_be_switched_off(source, monkeypatch):
    monkeypatch.setenv("MASE_NATIVE", "0")
    assert native.load(source) is None


@needs_compiler
def test_an_unwritable_cache_falls_back_to_a_temporary_folder(source, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("MASE_CACHE_DIR", str(blocked / "below"))
    assert isinstance(native.load(source), ctypes.CDLL)


@needs_compiler
def test_openmp_flags_build_with_the_runtime_already_loaded(source):
    body = SOURCE.replace("return 42", "return omp_get_max_threads() > 0 ? 42 : 0")
    source.write_text("#include <omp.h>\n" + body)
    assert native.load(source, native.openmp_flags()).answer() == 42


def test_the_allocator_can_be_told_to_keep_memory():
    program = (
        "import platform; from chop.native import tune_allocator;"
        "assert tune_allocator() == (platform.libc_ver()[0] == 'glibc')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_freed_memory_returns_to_the_system():
    program = (
        "import platform, re; from pathlib import Path;"
        "from chop.native import return_freed_memory;"
        "status = Path('/proc/self/status');"
        "used = lambda: int(re.search(r'VmRSS:\\s+(\\d+)', status.read_text())[1]);"
        "blocks = [bytes(10_000) for _ in range(5_000)]; del blocks[:-1]; before = used();"
        "assert return_freed_memory() == (platform.libc_ver()[0] == 'glibc');"
        "assert before - used() > 20_000 or platform.libc_ver()[0] != 'glibc'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
