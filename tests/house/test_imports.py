"""Packages import only what pyproject.toml's contracts allow, and importing aioidem is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aioidem.broker import EmbeddedCluster

ROOT = Path(__file__).parents[2]


def _run(program: str, *arguments: str) -> str:
    """Run a program in a fresh interpreter, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_import_contracts_hold() -> None:
    """The import contracts in pyproject.toml hold: the layers, and which packages do no IO."""
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    _run(program)


def test_importing_the_package_loads_no_optional_dependency() -> None:
    """Importing aioidem loads no optional dependency."""
    optional = [
        *("cramjam", "hdrh", "pyspark", "rich", "trio", "typer", "uvloop"),
        *("aiokafka", "confluent_kafka", "kafka"),
    ]
    # kio imports hypothesis if it is installed, and hypothesis imports every package that has a
    # plugin for it.
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import aioidem, aioidem._config, aioidem.errors, aioidem.structs\n"
        "print([name for name in sys.argv[1:] if name in sys.modules])"
    )
    assert _run(program, *optional).strip() == "[]"


_ALONE = {
    "_build",
    "_config",
    "_engine",
    "_errors",
    "_flight",
    "_hot",
    "_network",
    "_producer",
    "_protocol",
}
_ALONE |= {"_log", "_records", "abc", "errors", "partitioner", "structs"}
ALLOWED_BY_IMPORT = {
    *(f"aioidem.{name}" for name in _ALONE),
    # `client` decides whether SASL is configured; only then are its other modules imported.
    *("aioidem._network.sasl", "aioidem._network.sasl.client"),
    *("anyio", "kio", "kio.schema.errors", "sniffio", "typing_extensions"),
}
"""What `import aioidem` may load besides the standard library.

A module's name is cut after its first part; after two parts in aioidem, after three among kio's
schemas, and after four in `aioidem._network.sasl`.
"""

UNNEEDED = {
    *("argparse", "csv", "difflib", "email", "hmac", "html", "http", "importlib.metadata", "json"),
    *("pathlib", "sysconfig", "tempfile", "unittest", "urllib", "zipfile"),
}
"""Modules of the standard library that a program which only sends records does not need.

asyncio, anyio or kio may load one of them, in some version.
"""

UNNEEDED_OF_OURS = {"aioidem._aiokafka", "aioidem._producer.metrics", "aioidem._producer.table"}

DATACLASSES = {"DeliveryRange", "PartitionUpdate", "ProducerConfig"}
"""The dataclasses that `import aioidem` may make; `_protocol.produce_v14` makes its own later."""

OTHERS = "asyncio, anyio.abc, anyio.lowlevel, anyio.streams.tls, anyio.to_thread, kio.schema.errors"
"""What `import aioidem` needs of other packages."""

ALLOWED_BY_SENDING = ALLOWED_BY_IMPORT | {
    f"kio.schema.{name}"
    for name in (
        *("api_versions", "describe_configs", "index", "init_producer_id", "metadata"),
        *("request_header", "response_header", "types"),
    )
}
"""What may be loaded after one record was sent in plain text and without compression."""

PROGRAM = """
import sys
sys.modules['hypothesis'] = None  # kio imports it where it is installed, and it imports its plugins
before = set(sys.modules)
import aioidem

async def main():
    async with aioidem.Producer(sys.argv[1]) as producer:
        await producer.send("t", b"value")

if len(sys.argv) > 1:
    import asyncio
    asyncio.run(main())
print(*sorted(set(sys.modules) - before))
"""


def loaded(*arguments: str) -> set[str]:
    """Run `PROGRAM` in a fresh interpreter; return the modules it loads, with names cut short.

    The names are cut as in `ALLOWED_BY_IMPORT`.
    """
    return {_named(module) for module in _run(PROGRAM, *arguments).split()} - {""}


def _named(module: str) -> str:
    """Return a module's shortened name, or "" for the standard library and for bare packages."""
    match module.split("."):
        case [first, *_] if first in sys.stdlib_module_names:
            return ""
        case [first] if first == "cython_runtime" or first.startswith("_cython_"):
            return ""  # Cython's own, which the compiled hot path registers
        case ["aioidem"] | ["kio", "schema"]:
            return ""
        case ["aioidem", "_network", "sasl", *rest]:
            return ".".join(["aioidem._network.sasl", *rest[:1]])
        case ["aioidem", second, *_]:
            return f"aioidem.{second}"
        case ["kio", "schema", third, *_]:
            return f"kio.schema.{third}"
        case [first, *_]:
            return first
    return ""


def test_importing_the_package_loads_only_what_a_producer_needs() -> None:
    """Importing aioidem loads no broker, tool, SASL mechanism, codec or schema of an API."""
    names = loaded()
    assert names >= {"aioidem._producer", "anyio"}
    assert names - ALLOWED_BY_IMPORT == set()


def test_importing_the_package_loads_no_module_that_sending_does_not_need() -> None:
    """Importing aioidem loads no parser of arguments, mail or archives, nor what few callers use.

    Those use the drop-in, statistics or tables.
    """
    hidden = "import sys; sys.modules['hypothesis'] = None"
    shown = "print(*sys.modules)"
    before = set(_run(f"{hidden}; import {OTHERS}; {shown}").split())
    after = set(_run(f"{hidden}; import aioidem; {shown}").split())
    assert after >= {"aioidem._producer.native", "aioidem._records.builder"}
    assert (after - before) & (UNNEEDED | UNNEEDED_OF_OURS | {"crc32c"}) == set()


def test_importing_the_package_makes_few_dataclasses() -> None:
    """Hardly any class that the import makes is a dataclass.

    The code of a dataclass is generated and compiled at each import, which takes as long as making
    four named tuples.
    """
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import aioidem\n"
        "ours = [module for name, module in sys.modules.items() if name.startswith('aioidem')]\n"
        "found = {each for module in ours for each in vars(module).values()\n"
        "         if isinstance(each, type) and '__dataclass_fields__' in vars(each)}\n"
        "print(*(each.__name__ for each in found if each.__module__.startswith('aioidem')))"
    )
    assert set(_run(program).split()) == DATACLASSES


def test_the_drop_in_is_loaded_when_it_is_used() -> None:
    """The names of the drop-in for aiokafka are listed, but its module is loaded only by their use.

    `from aioidem import *` uses them.
    """
    program = (
        "import sys, aioidem\n"
        "assert set(aioidem.__all__) <= set(dir(aioidem))\n"
        "assert not hasattr(aioidem, 'AIOKafkaConsumer')\n"
        "assert 'aioidem._aiokafka' not in sys.modules\n"
        "from aioidem import *\n"
        "assert aioidem.AIOKafkaProducer is AIOKafkaProducer\n"
        "assert 'AIOKafkaProducer' in vars(aioidem)\n"
        "print(AIOKafkaProducer.__module__, DeliveryFuture.__name__, MoreOptions.__name__)"
    )
    found = _run(program).split()
    assert found == ["aioidem._aiokafka.producer", "DeliveryFuture", "MoreOptions"]


def test_sending_a_record_loads_only_the_apis_that_a_producer_asks() -> None:
    """Sending one record loads the schemas of the APIs that were asked, and nothing else."""
    with EmbeddedCluster.in_thread() as cluster:
        names = loaded(cluster.bootstrap_servers)
        assert [value for *_, value, _ in cluster.records("t")] == [b"value"]
    assert names >= {"kio.schema.metadata"}
    assert names - ALLOWED_BY_SENDING == set()
