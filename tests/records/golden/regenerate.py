"""Write golden.json: record batches that Kafka's own Java classes made, and their records.

Run this script by hand after adding a case: ``python tests/records/golden/regenerate.py``, with
Java 17 or newer and Maven on PATH. The script also has Java read the batches that aioidem builds
from every case with every codec, and fails on any difference.

The output is deterministic, but the compressed batches depend on the versions of Java's codecs. In
golden.json bytes are hex, and ``hh*n`` is the byte hh n times. ``repeat`` is how many times a
case's records are in the batch. Of a batch larger than `_LARGEST` bytes, the file has only the size
and the SHA-256.

Rejected: golden batches from aiokafka, which writes neither log-append time nor control batches.
test_batch_properties.py compares with aiokafka in both directions instead.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
from pathlib import Path
from typing import Any

from aioidem._jars import jar_folder
from aioidem._records import Codec, ReadRecord, assign_offsets, build_batch

KAFKA = "4.3.1"
_HERE = Path(__file__).parent
_LARGEST = 4096
_NOW = 1_795_250_000_000
_ARTIFACTS = (
    f"org/apache/kafka/kafka-clients/{KAFKA}/kafka-clients-{KAFKA}.jar",
    "at/yawk/lz4/lz4-java/*/lz4-java-*.jar",
    "com/github/luben/zstd-jni/*/zstd-jni-*.jar",
    "org/xerial/snappy/snappy-java/*/snappy-java-*.jar",
    "org/slf4j/slf4j-api/*/slf4j-api-*.jar",
)

Case = dict[str, Any]
Row = list[Any]  # timestamp, key, value, [header key, header value]...


def row(timestamp: int, key: str | None, value: str | None, *headers: Row) -> Row:
    return [timestamp, key, value, [list(header) for header in headers]]


def case(name: str, records: list[Row], **fields: Any) -> Case:
    return {"name": name, "records": records, **fields}


def text(string: str) -> str:
    return string.encode().hex()


def plain_cases() -> list[Case]:
    """Return the uncompressed cases, in which our batch must equal Java's byte for byte."""
    one = [row(_NOW, text("key"), text("value"))]
    three = [row(_NOW + i, text(f"k{i}"), text(f"v{i}")) for i in range(3)]
    sizes = (0, 1, 62, 63, 64, 65, 8191, 8192, 8193)
    return [
        case("one record", one),
        case("null key", [row(_NOW, None, text("value"))]),
        case("null value", [row(_NOW, text("key"), None)]),
        case("null key and value", [row(_NOW, None, None)]),
        case("empty key and value", [row(_NOW, "", "")]),
        case("empty against null", [row(_NOW, "", None), row(_NOW, None, "")]),
        case("one header", [row(_NOW, None, text("v"), [text("h"), text("x")])]),
        case(
            "headers: null, empty, repeated, unicode, empty key",
            [
                row(
                    _NOW,
                    text("k"),
                    text("v"),
                    [text("a"), None],
                    [text("a"), ""],
                    [text("a"), "00ff"],
                    [text("grün 漢字 🙂"), text("ü")],
                    ["", text("x")],
                ),
                row(_NOW, text("k"), None, [text("a"), None]),
                row(_NOW, None, text("after headers")),
            ],
        ),
        case("many headers", [row(_NOW, None, None, *([text(f"h{i}"), "00"] for i in range(70)))]),
        case("large header", [row(_NOW, None, "", ["61*200", "62*9000"])]),
        *(case(f"value of {size} bytes", [row(_NOW, None, f"78*{size}")]) for size in sizes),
        *(case(f"key of {size} bytes", [row(_NOW, f"78*{size}", text("v"))]) for size in sizes),
        case("value of 1 MiB", [row(_NOW, None, "78*1048576")]),
        case("value of 2 MiB and a bit", [row(_NOW, None, "78*2097153")]),
        case("300 records at one time", [row(_NOW, None, "78*20")], repeat=300),
        case("5000 records", [row(_NOW + i * i, None, f"{i:02x}") for i in range(5)], repeat=1000),
        case("times rise", [row(_NOW + i * i * i, None, "00") for i in range(40)]),
        case("times fall", [row(_NOW - i * i * i, None, "00") for i in range(40)]),
        case(
            "times at the limits",
            [row(t, None, "00") for t in (0, 2**63 - 1, 1, -1, 2**62, 2**31, 2**32)],
        ),
        case("no time", [row(-1, None, "00")]),
        case("no time, then time", [row(-1, None, "00"), row(_NOW, None, "01")]),
        case("log append time", three, log_append_time=_NOW + 12_345),
        case("log append time before the records", three, log_append_time=1),
        case("offset and leader epoch", three, base_offset=2**40 + 3, leader_epoch=7),
        case("offset at the limit", one, base_offset=2**63 - 1, leader_epoch=2**31 - 1),
        case("producer", three, producer_id=4711, producer_epoch=3, base_sequence=0),
        case(
            "producer at the limits",
            three,
            producer_id=2**63 - 1,
            producer_epoch=2**15 - 1,
            base_sequence=2**31 - 1,
        ),
        case(
            "sequence wraps",
            [row(_NOW, None, f"{i:02x}") for i in range(10)],
            producer_id=9,
            producer_epoch=0,
            base_sequence=2**31 - 5,
        ),
        case(
            "transactional",
            three,
            producer_id=1,
            producer_epoch=2,
            base_sequence=3,
            transactional=True,
        ),
        case(
            "transactional, log append time",
            three,
            producer_id=1,
            producer_epoch=2,
            base_sequence=3,
            transactional=True,
            log_append_time=_NOW,
            base_offset=5,
            leader_epoch=6,
        ),
        case(
            "control batch",
            [row(_NOW, "00000001", "0000000000ff")],
            producer_id=1,
            producer_epoch=2,
            transactional=True,
            control=True,
        ),
    ]


def reading_cases() -> list[Case]:
    """Return the cases that are only read: batches that only brokers write, or that are refused."""
    three = [row(_NOW + i, text(f"k{i}"), text(f"v{i}")) for i in range(3)]
    marker = {"producer_id": 77, "producer_epoch": 4, "base_offset": 10, "leader_epoch": 2}
    return [
        case("COMMIT", [["COMMIT", 5, _NOW]], kind="marker", **marker),
        case("ABORT", [["ABORT", 0, _NOW]], kind="marker", **marker),
        case(
            "compacted to nothing",
            [],
            kind="empty",
            producer_id=1,
            producer_epoch=2,
            base_sequence=30,
            base_offset=100,
            last_offset_delta=4,
        ),
        case("compacted with gaps", three, deltas=[1, 4, 9], base_offset=100),
        case("compacted with gaps, gzip", three, deltas=[0, 70, 9000], codec="gzip"),
        case("magic 1", three, magic=1),
        case("magic 0", [row(-1, None, "00")], magic=0),
    ]


def codec_cases() -> list[Case]:
    """Return the compressed cases: Java's batch, decompressed, must equal our uncompressed one."""
    rng = random.Random(1)
    repetitive = [
        row(_NOW + i, text(f"key-{i}"), text(f'{{"field": "value", "number": {i * i}}}'))
        for i in range(60)
    ]
    noise = [row(_NOW, None, rng.randbytes(300).hex()) for _ in range(3)]
    rich = [
        row(_NOW, None, None, [text("漢字"), None], [text("h"), ""]),
        row(_NOW - 5, "", "", ["", text("x")]),
    ]
    identity = {"producer_id": 12, "producer_epoch": 1, "base_sequence": 2**31 - 1}
    cases = []
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        cases += [
            case(f"{codec}: repetitive", repetitive, codec=codec, **identity),
            case(f"{codec}: noise", noise, codec=codec),
            case(f"{codec}: nulls and headers", rich, codec=codec, transactional=True, **identity),
            case(f"{codec}: 200 kB", [row(_NOW, "ab*3", "78*200000")], codec=codec),
            case(f"{codec}: log append time", rich, codec=codec, log_append_time=_NOW + 1),
        ]
    return cases


def rows(case: Case) -> list[Row]:
    records: list[Row] = case["records"] * case.get("repeat", 1)
    return records


def expand(notation: str | None) -> bytes | None:
    if notation is None:
        return None
    byte, _, times = notation.partition("*")
    return bytes.fromhex(byte) * int(times or 1)


def wire(data: bytes | None) -> str:
    return "-" if data is None else data.hex()


def batch_line(case: Case) -> str:
    fields = (
        case.get("kind", "plain"),
        case.get("magic", 2),
        case.get("codec", "none"),
        case.get("base_offset", 0),
        case.get("leader_epoch", -1),
        case.get("log_append_time", "-"),
        case.get("producer_id", -1),
        case.get("producer_epoch", -1),
        case.get("base_sequence", -1),
        int(case.get("transactional", False)),
        int(case.get("control", False)),
        case.get("last_offset_delta", len(rows(case)) - 1),
    )
    return "\t".join(["batch", *map(str, fields)])


def record_lines(case: Case) -> list[str]:
    if case.get("kind") == "marker":
        return ["\t".join(["record", *map(str, case["records"][0])])]
    lines = []
    deltas = case.get("deltas", range(len(rows(case))))
    stamp = case.get("log_append_time")
    for delta, (timestamp, key, value, headers) in zip(deltas, rows(case), strict=True):
        fields = ["record", str(delta), str(timestamp if stamp is None else stamp)]
        fields += [wire(expand(key)), wire(expand(value))]
        for header in headers:
            fields += map(wire, map(expand, header))
        lines.append("\t".join(fields))
    return lines


def java(mode: str, lines: list[str]) -> list[str]:
    path = ":".join(str(max(jar_folder().glob(pattern))) for pattern in _ARTIFACTS)
    command = ["java", "-cp", path, str(_HERE / "GoldenBatches.java"), mode]
    text_in = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text_in, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.splitlines()


def built_by_java(cases: list[Case]) -> list[bytes]:
    lines: list[str] = []
    for case in cases:
        plain = {key: value for key, value in case.items() if key != "log_append_time"}
        # Java's builder takes the log-append time once per batch, and each record's own timestamp.
        # So only the batch's line is made with the log-append time, the records' lines without it.
        lines += [batch_line(case), *record_lines(plain), "end"]
    return [bytes.fromhex(line) for line in java("build", lines)]


def our_records(case: Case) -> list[ReadRecord]:
    records = []
    for timestamp, key, value, headers in rows(case):
        pairs = tuple(((expand(k) or b"").decode(), expand(v)) for k, v in headers)
        records.append(ReadRecord(0, timestamp, expand(key), expand(value), pairs))
    return records


def check_that_java_reads_ours(cases: list[Case]) -> int:
    sent, expected = [], []
    for case in cases:
        for codec in Codec:
            batch = build_batch(
                our_records(case),
                codec=codec,
                producer_id=case.get("producer_id", -1),
                producer_epoch=case.get("producer_epoch", -1),
                base_sequence=case.get("base_sequence", -1),
                transactional=case.get("transactional", False),
                control=case.get("control", False),
                log_append_time_ms=case.get("log_append_time"),
            )
            data = assign_offsets(
                batch.data,
                base_offset=case.get("base_offset", 0),
                leader_epoch=case.get("leader_epoch", -1),
            )
            sent.append(data.hex())
            expected += [batch_line({**case, "codec": codec.name.lower()})]
            expected += [*record_lines(case), "end"]
    if java("read", sent) != expected:
        raise SystemExit("Java reads something else than aioidem wrote")
    return len(sent)


def main() -> None:
    coordinates = f"org.apache.kafka:kafka-clients:{KAFKA}"
    command = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={coordinates}"]
    subprocess.run(command, check=True)
    buildable = [*plain_cases(), *codec_cases()]
    cases = [*buildable, *reading_cases()]
    for case, data in zip(cases, built_by_java(cases), strict=True):
        if len(data) <= _LARGEST:
            case["data"] = data.hex()
        else:
            case["size"] = len(data)
            case["sha256"] = hashlib.sha256(data).hexdigest()
    document = {"kafka": KAFKA, "cases": cases}
    lines = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    (_HERE / "golden.json").write_text(lines.replace('{"name"', '\n{"name"') + "\n")
    read = check_that_java_reads_ours(buildable)
    print(f"Java built {len(cases)} batches and read {read} of ours")  # noqa: T201


if __name__ == "__main__":
    main()
