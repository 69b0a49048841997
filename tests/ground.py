"""An environment with the settings of other programs, most of which are wrong for aioidem."""

from __future__ import annotations

import os
from pathlib import Path

from aioidem._jars import jar_folder

_NOBODY = "http://127.0.0.1:9"

# Variables that are removed before the tests run; a test that needs one sets it.
FOREIGN = (
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "OPENJ9_JAVA_OPTIONS"),
    *("IBM_JAVA_OPTIONS", "CLASSPATH"),
    *("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("COLUMNS", "LINES", "SSLKEYLOGFILE", "KRB5_CONFIG", "KRB5CCNAME", "KRB5_KTNAME"),
)
FOREIGN_PREFIXES = ("AWS_", "HADOOP_", "KAFKA_", "PYSPARK_", "SPARK_")


def foreign(name: str) -> bool:
    """Return whether an environment variable is removed before the tests run."""
    return name in FOREIGN or name.startswith(FOREIGN_PREFIXES)


def hostile(folder: Path) -> dict[str, str]:
    """Return this process's environment with the wrong settings that other programs may leave."""
    home, scratch = folder / "a home", folder / "a scratch"
    for each in (home, scratch):
        each.mkdir(exist_ok=True)
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return {
        **os.environ,
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "XDG_CACHE_HOME": str(jar_folder().parents[1]),
        "M2_REPO": "/nowhere",
        **dict.fromkeys((*proxies, *map(str.lower, proxies)), _NOBODY),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), ""),
        **dict.fromkeys(("LANG", "LC_ALL"), "C"),
        "JAVA_TOOL_OPTIONS": "-Duser.language=tr -Duser.country=TR -Dfile.encoding=US-ASCII",
        "_JAVA_OPTIONS": "-Djava.net.useSystemProxies=true",
        "OPENJ9_JAVA_OPTIONS": "-XX:NoSuchOption",
        "CLASSPATH": "/nowhere",
        "KAFKA_OPTS": "-XX:NoSuchOption",
        "KAFKA_HEAP_OPTS": "-Xmx1k",
        "PYTHONWARNINGS": "error",
        "PYTHONOPTIMIZE": "1",
        "PYTHONUTF8": "0",
        **dict.fromkeys(("AWS_PROFILE", "AWS_REGION", "AWS_CONFIG_FILE"), "/nowhere"),
        **dict.fromkeys(("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"), "/nowhere"),
        **dict.fromkeys(("KRB5_CONFIG", "KRB5CCNAME", "GIT_DIR"), "/nowhere"),
        "TZ": "Pacific/Kiritimati",
        "COLUMNS": "20",
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
