"""The options that contain broker addresses: `bootstrap_servers` and `allowed_brokers`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from aioidem._config.kinds import RefusedValue

__all__ = ["Addresses", "Places"]

_DEFAULT_PORT: Final = 9092
_HOST: Final = re.compile(r"[^\s/@,:\[\]]+")


class Addresses(NamedTuple):
    """At least one broker address, stored as (host, port) pairs in order, without duplicates."""

    allowed: str = (
        "'host:port' (port 1 to 65535, 9092 when left out, IPv6 as '[::1]:9092'), several joined "
        "by commas or in a list, or (host, port) pairs"
    )
    allowed_text: str = "host:port[,host:port...] (port 1 to 65535, IPv6 as [::1]:9092)"

    def accept(self, value: object) -> tuple[tuple[str, int], ...]:
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, Iterable) or isinstance(entries, bytes | Mapping):
            raise RefusedValue
        addresses = [address for entry in entries for address in self._read(entry)]
        if not addresses:
            raise RefusedValue
        return tuple(dict.fromkeys(addresses))

    def parse(self, text: str) -> str:
        return text

    def _read(self, entry: object) -> list[tuple[str, int]]:
        if isinstance(entry, str):
            parts = [part.strip() for part in entry.split(",")]
            return [_address(part) for part in parts if part]
        match entry:
            case (str() as host, int() as port) if not isinstance(port, bool):
                return [_checked_address(host, port, ipv6=":" in host)]
            case _:
                raise RefusedValue


def _address(text: str) -> tuple[str, int]:
    """Read "host", "host:port", "[IPv6 address]" or "[IPv6 address]:port"."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise RefusedValue
        return _checked_address(host, _port(rest[1:]) if rest else _DEFAULT_PORT, ipv6=True)
    host, colon, port = text.partition(":")
    return _checked_address(host, _port(port) if colon else _DEFAULT_PORT, ipv6=False)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise RefusedValue
    return int(text)


def _checked_address(host: str, port: int, *, ipv6: bool) -> tuple[str, int]:
    bare = host.replace(":", "") if ipv6 else host
    if not _HOST.fullmatch(bare) or not 1 <= port <= 65535:
        raise RefusedValue
    return host, port


class Places(NamedTuple):
    """Host names, domains and networks where brokers may be, or None for anywhere."""

    allowed: str = (
        "host names, domains as '*.example.org' and networks as '10.1.0.0/16', joined by commas "
        "or in a list, or None"
    )
    allowed_text: str = "host names, *.domains and networks, joined by commas"

    def accept(self, value: object) -> tuple[str, ...] | None:
        if value is None:
            return None
        entries = value.split(",") if isinstance(value, str) else value
        if not isinstance(entries, Iterable) or isinstance(entries, bytes | Mapping):
            raise RefusedValue
        places = tuple(each.strip() if isinstance(each, str) else "" for each in entries)
        if not places or not all(_is_place(each) for each in places):
            raise RefusedValue
        return places

    def parse(self, text: str) -> str:
        return text


def _is_place(text: str) -> bool:
    import ipaddress  # only here, because few programs set `allowed_brokers`

    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        name = text.removeprefix("*.")
        return _HOST.fullmatch(name) is not None and "*" not in name
    return True
