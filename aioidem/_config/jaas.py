"""Read Java's ``sasl.jaas.config``, a text with one entry, into options of `ProducerConfig`.

``org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";``

Values stand in double or single quotes, with Java's escapes, or bare. The login modules of Kafka,
of the JDK (for Kerberos) and of AWS (for MSK) are supported. A module is recognised by its class
name alone, in any package. Its options are read if `ProducerConfig` has a counterpart. Any other
text is refused, and no error message quotes it, because it may hold a password.

Rejected: entries with several modules (Kafka refuses them too).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["JaasError", "read_jaas"]

_VALUE: Final = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"';=]+)"""
_ENTRY: Final = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?i:required|requisite|sufficient|optional)"
    rf"(?P<options>(?:\s+\w+\s*=\s*{_VALUE})*)\s*;?\s*"
)
_OPTION: Final = re.compile(rf"(\w+)\s*=\s*({_VALUE})")
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[0-7]{1,2}|.)")
_NAMED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

_PASSWORD: Final = {"username": "sasl_username", "password": "sasl_password"}
_MODULES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "PlainLoginModule": _PASSWORD,
        "ScramLoginModule": _PASSWORD,
        "OAuthBearerLoginModule": {
            "clientId": "sasl_oauthbearer_client_id",
            "clientSecret": "sasl_oauthbearer_client_secret",
            "scope": "sasl_oauthbearer_scope",
        },
        "Krb5LoginModule": {"serviceName": "sasl_kerberos_service_name"},
        "IAMLoginModule": {},
    }
)

_JAVAS: Final = frozenset(
    {name for known in _MODULES.values() for name in known}
    | {"debug", "doNotPrompt", "keyTab", "principal", "refreshKrb5Config", "renewTGT", "storeKey"}
    | {"ticketCache", "tokenauth", "useKeyTab", "useTicketCache"}
)
"""The options of Java's login modules.

Error messages quote these names only: any other word may be a part of a password.
"""


class JaasError(ValueError):
    """A JAAS entry cannot be read; the message quotes none of its values."""


def read_jaas(text: str) -> dict[str, str]:
    """Return the options in a JAAS entry, by the names of `ProducerConfig`.

    Raises:
        JaasError: The text is not one entry, or its login module or an option is unknown.
    """
    entry = _ENTRY.fullmatch(text)
    if entry is None:
        raise JaasError('one entry: module required name="value" ...;')
    module = entry["module"].rpartition(".")[2]
    known = _MODULES.get(module)
    if known is None:
        raise JaasError(f"one of the login modules {', '.join(_MODULES)}")
    options: dict[str, str] = {}
    for name, value in _OPTION.findall(entry["options"]):
        if name not in known:
            takes = ", ".join(known) or "no options"
            # If a password without quotes contains a blank and an equals sign, `name` is a part of
            # that password. So the message quotes `name` only if Java has an option of that name.
            other = name if name in _JAVAS else "another option"
            raise JaasError(f"{module} with {takes}; {other} is not one of them")
        options[known[name]] = _plain(value)
    return options


def _plain(value: str) -> str:
    """Return a value without its quotes, and with Java's escapes replaced."""
    return _ESCAPE.sub(_character, value[1:-1]) if value[0] in "\"'" else value


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _NAMED.get(code, code)
