"""Types as users see them: samples pass strict mypy and pyright with the installed wheel.

The wheel is built from a copy of the tree, so that no build file is left in the checkout. It is
unpacked into a virtual environment that has aioidem's dependencies but does not see the checkout.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = [ROOT / "tests/house/typed_sample.py", ROOT / "tests/drop_in/typed_sample.py"]
WRONG = "import aioidem\naioidem.AIOKafkaProducer(linger_ms='5').send(7)\n"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(*command: str, cwd: Path, seconds: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=seconds
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "aioidem", tree / "aioidem", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    options = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        str(out),
    ]
    done = run(sys.executable, "-m", "pip", "wheel", *options, str(tree), cwd=out)
    assert done.returncode == 0, done.stderr
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide an interpreter that has the wheel installed."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, symlinks=True)
    interpreter = home / "bin" / "python"
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(str(interpreter), "-c", program, cwd=home).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # This line adds the directory of the dependencies. A .pth file in that directory would add the
    # checkout, but Python reads no .pth files in a directory that another .pth file names.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(str(interpreter), "-c", "import aioidem; print(aioidem.__file__)", cwd=home)
    assert str(packages) in where.stdout, where.stderr
    return interpreter


def test_the_wheel_has_what_it_needs_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "aioidem/py.typed" in names
    for name in ("_aiokafka/producer.py", "integrations/aiokafka.py", "helpers.py", "abc.py"):
        assert f"aioidem/{name}" in names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]


def mypy(python: Path, work: Path, *files: str) -> subprocess.CompletedProcess[str]:
    options = ["--strict", "--warn-unreachable", "--python-executable", str(python)]
    return run(sys.executable, "-m", "mypy", *options, "--config-file=", *files, cwd=work)


def pyright(python: Path, work: Path, *files: str) -> subprocess.CompletedProcess[str]:
    (work / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    return run(sys.executable, "-m", "pyright", "--pythonpath", str(python), *files, cwd=work)


def copied(work: Path) -> list[str]:
    names = [f"sample_{number}.py" for number in range(len(SAMPLES))]
    for name, sample in zip(names, SAMPLES, strict=True):
        shutil.copy(sample, work / name)
    (work / "wrong.py").write_text(WRONG)
    return names


def test_mypy_strict_passes_the_samples(python: Path, tmp_path: Path) -> None:
    done = mypy(python, tmp_path, *copied(tmp_path))
    assert done.returncode == 0, done.stdout
    wrong = mypy(python, tmp_path, "wrong.py")
    assert wrong.returncode == 1
    assert wrong.stdout.count("error:") >= 2, wrong.stdout


def test_pyright_strict_passes_the_samples(python: Path, tmp_path: Path) -> None:
    done = pyright(python, tmp_path, *copied(tmp_path))
    assert done.returncode == 0, done.stdout
    wrong = pyright(python, tmp_path, "wrong.py")
    assert wrong.returncode == 1
    assert wrong.stdout.count("error:") >= 2, wrong.stdout
