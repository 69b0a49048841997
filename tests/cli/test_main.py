"""The command line as users see it: exit statuses, messages, and missing optional packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from aioidem import __version__, build_info
from aioidem._cli import main
from tests.commands import ALONE, FULL_DISK, told_on_a_full_disk

Captured = pytest.CaptureFixture[str]


def refused(capsys: Captured, *words: str) -> str:
    """Run a command that must fail with status 2 and one line on standard error."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("perf --no-such-flag", "--no-such-flag"),
        ("perf stray", "stray"),
        ("perf --warmup-records 5 --num-records 5", "leave no record for the steady state"),
        ("perf --warmup-records -1", "--warmup-records: -1 is not from 0"),
        ("perf --payload-monotonic", "--payload-monotonic: needs --num-records"),
        ("perf --payload-monotonic --record-size 5 --num-records 1", "exclude each other"),
        ("perf --reporting-interval=0", "--reporting-interval: 0 is not from 1"),
        ("perf --warmup-records 1 --spark --tasks 2", "--spark: not with --warmup-records"),
        ("perf --reporting-interval 9 --spark --tasks 2", "--spark: not with --warmup-records"),
        (
            "perf --payload-monotonic --num-records 4 --spark --tasks 2",
            "or --payload-monotonic: each task is a run of its own",
        ),
        ("perf --num-records", "--num-records"),
        ("perf --num-records x", "--num-records"),
        ("perf --num-records 1.5", "--num-records"),
        ("perf --duration soon", "--duration"),
        ("perf --num-records 5 --duration 3", "exclude each other"),
        ("perf --in-flight 1,,5", "'' in '1,,5' is not a whole number"),
        ("perf --producer-props", "--producer-props"),
        ("perf --producer-props batch.size=1 linger", "value 2 is not name=value"),
        ("perf --producer-props no.such.property=1", "no.such.property"),
        ("perf --producer-props acks=1", "idempotence"),
        ("perf --payload-file /no/such/file", "/no/such/file: No such file"),
        ("perf --bootstrap-server h:1 --rtt 5 --topic t --num-records 1", "--rtt"),
        ("perf --throughput 0", "--throughput"),
        ("perf --retain 4", "--retain: 4 is not from 5"),
        ("perf --transaction-duration-ms 0", "--transaction-duration-ms: 0 is not from 1"),
        ("perf --transactional-id x --spark --tasks 2", "fence each other"),
        ("broker --brokers 0", "--brokers: 0 is not from 1"),
        ("broker --retain 4", "--retain: 4 is not from 5"),
        ("broker --retain 1000001", "--retain: 1000001 is not from 5 to 1000000"),
        ("broker --rtt nan", "--rtt: nan"),
        ("broker --rtt 60000.01", "--rtt: 60000.01 is not from 0 to 60000"),
        ("perf --duration 604800.5", "--duration: 604800.5 is not above 0 and at most 604800"),
        ("broker --port 65536", "--port: 65536 is not from 0"),
        ("broker --port 65535 --brokers 2", "--port"),
        ("broker --topic t:0", "'t:0'"),
        ("broker --topic t:x", "'t:x'"),
        ("broker --topic t --topic t:3", "t was given twice"),
        ("broker --topic ..", "--topic"),
        ("replay", "FILE"),
        ("replay /no/such/file", "/no/such/file: No such file"),
        ("no-such-command", "no-such-command"),
    ],
)
def test_bad_usage_is_status_2_and_one_line_that_names_it(
    capsys: Captured, words: str, message: str
) -> None:
    """Wrong arguments end the command with status 2 and one line that names them."""
    line = refused(capsys, *words.split())
    assert line.startswith("aioidem ")
    assert message in line


def test_the_message_begins_with_the_command(capsys: Captured) -> None:
    assert refused(capsys, "perf", "--in-flight", "x").startswith("aioidem perf: --in-flight: ")
    assert refused(capsys, "broker", "--topic", "").startswith("aioidem broker: --topic: ")


def test_help_names_every_flag_scripts_depend_on(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["perf", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in (
        "--topic", "--num-records", "--duration", "--record-size", "--throughput",
        "--producer-props", "--transactional-id", "--transaction-duration-ms", "--payload-file",
        "--print-metrics",
        "--bootstrap-server", "--rtt", "--retain", "--brokers", "--in-flight", "--json", "--report",
    ):  # fmt: skip
        assert flag in text
    assert main(["broker", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--brokers", "--retain", "--rtt", "--port", "--topic"))


@pytest.mark.parametrize("words", [("-h",), ("perf", "-h"), ("broker", "-h")])
def test_h_prints_the_help_as_kafkas_own_tools_do(capsys: Captured, words: tuple[str, ...]) -> None:
    assert main(words) == 0
    assert "Usage: aioidem" in capsys.readouterr().out


def test_the_version_needs_no_extra() -> None:
    code = (
        f"{ALONE}sys.modules['typer'] = None\n"
        "from aioidem._cli import main\n"
        "sys.exit(main(['--version']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.startswith(f"aioidem {__version__} (")


@pytest.mark.parametrize(
    ("library", "module", "extra"),
    [
        ("prometheus_client", "prometheus", "prometheus"),
        ("opentelemetry", "opentelemetry", "opentelemetry"),
        ("aiokafka", "aiokafka", "compat"),
    ],
)
def test_an_integration_without_its_library_says_what_to_install(
    library: str, module: str, extra: str
) -> None:
    """The error is still a ModuleNotFoundError that names the library."""
    code = f"{ALONE}sys.modules[{library!r}] = None\nimport aioidem.integrations.{module}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stderr.endswith(
        f"ModuleNotFoundError: this integration needs {library}: pip install 'aioidem[{extra}]'\n"
    )


def test_no_arguments_print_the_help(capsys: Captured) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "perf" in captured.out
    assert captured.err == ""


@pytest.mark.skipif(not FULL_DISK.exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_a_full_disk_is_told_in_a_line(flag: str) -> None:
    told = 1, "aioidem: [Errno 28] No space left on device\n"
    assert told_on_a_full_disk(flag) == told


def test_the_version_says_which_form_of_the_hot_path_runs(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"aioidem {__version__} (hot path: ")
    assert shown == f"{build_info()}\n"


def test_python_m_aioidem_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aioidem", "perf", "--in-flight", "0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("aioidem perf: --in-flight: ")


@pytest.mark.parametrize("module", ["typer", "hdrh"])
def test_ctrl_c_during_the_imports_is_status_130_and_no_traceback(module: str) -> None:
    """The command line imports typer, and the command what it needs itself."""
    code = (
        f"{ALONE}class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from aioidem._cli import main\n"
        "sys.exit(main(['perf', '--num-records', '1']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 130
    assert done.stdout + done.stderr.strip() == ""


# --- extras ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "install"), [("typer", "typer"), ("rich", "rich"), ("hdrh", "hdrhistogram")]
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(library: str, install: str) -> None:
    # In a new process: hiding the library here would import second copies of loaded modules.
    code = (
        f"{ALONE}sys.modules[{library!r}] = None\n"
        "from aioidem._cli import main\n"
        "sys.exit(main(['perf', '--num-records', '1']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"aioidem: needs {install}: pip install 'aioidem[cli]'\n"


def test_a_missing_module_that_is_no_extra_is_not_blamed_on_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ModuleNotFoundError for a module that belongs to no extra reaches the caller unchanged."""

    def run(_: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'kio'", name="kio")

    monkeypatch.setattr(importlib.import_module("aioidem._cli.app"), "run", run)
    with pytest.raises(ModuleNotFoundError, match="kio"):
        main(["perf"])


def test_importing_the_package_and_the_cli_loads_no_extra() -> None:
    code = (
        f"{ALONE}import aioidem, aioidem._cli;"
        "print([m for m in ('typer', 'rich', 'hdrh', 'plotly', 'click') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[]\n"


def test_a_script_can_tell_where_an_output_cannot_go(capsys: Captured, tmp_path: Path) -> None:
    """An output file that cannot be written ends the command with status 2, naming the flag."""
    line = refused(capsys, "perf", "--json", str(tmp_path / "none" / "x.json"))
    assert line.startswith("aioidem perf: --json: ")
