"""Who may talk to a policy's server: by token, by the page that a browser shows, by the name it was reached under."""

import dataclasses
import hmac
import http
import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from websockets.datastructures import Headers

from chunkwise.errors import ConfigError

TOKEN_VARIABLE = "CHUNKWISE_TOKEN"
MIN_TOKEN = 16
"""Characters of a token."""
SCHEME = "Api-Key "
"""How openpi-client sends its api_key, in the header Authorization."""
THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
"""The last is what openpi's client takes where no host is named; a connection to it stays on this machine."""

Refusal = tuple[http.HTTPStatus, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """What a request to connect must bring."""

    token: str | None = dataclasses.field(default=None, repr=False)
    """What openpi-client is given as api_key; None: nobody is asked."""
    origins: frozenset[str] = frozenset()
    """Pages whose scripts may connect, such as http://localhost:3000. A client that is no browser has none."""
    hosts: frozenset[str] = frozenset(THIS_MACHINE)
    """Names of this machine, in small letters, under which a server that listens to it alone is reached."""
    loopback: bool = True
    """Whether the server listens to this machine alone; the Host that a client names is then this machine. A page whose
    own name was made to lead here (DNS rebinding) names itself."""

    def refusal(self, headers: Headers) -> Refusal | None:
        """Why a client is not let in, with the status of the answer; None if it is."""
        origins = headers.get_all("Origin")
        if any(origin not in self.origins for origin in origins):
            what = f"expected no Origin, or one that --allow-origin names, found {', '.join(origins)[:200]}"
            return http.HTTPStatus.FORBIDDEN, what
        hosts = headers.get_all("Host")
        if self.loopback and not (len(hosts) == 1 and _name_of(hosts[0]) in self.hosts):
            known = ", ".join(sorted(self.hosts - {"::1"}))
            what = f"expected the Host to be one of {known}, found {', '.join(hosts)[:200]}; see --host"
            return http.HTTPStatus.FORBIDDEN, what
        if self.token is not None:
            given = headers.get_all("Authorization")
            expected = f"{SCHEME}{self.token}".encode()
            # In constant time: how long it takes to refuse says nothing about the token.
            if len(given) != 1 or not hmac.compare_digest(given[0].encode("utf-8", "replace"), expected):
                what = f"expected the header 'Authorization: {SCHEME}TOKEN', as openpi-client sends its api_key"
                return http.HTTPStatus.UNAUTHORIZED, what
        return None


def is_loopback(host: str) -> bool:
    """Whether a server that listens at `host` hears this machine alone."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return bool(found) and all(ipaddress.ip_address(str(to[0]).split("%")[0]).is_loopback for *_, to in found)
    except (OSError, UnicodeError, ValueError):  # no such name; to listen there fails, and says so
        return False


def read_token(text: str | None, file: str | None, variables: Mapping[str, str] = os.environ) -> str | None:
    """The token of the command line, of a file, or of the variable CHUNKWISE_TOKEN; None if there is none.

    Raises:
      ConfigError: If there are several, the file can't be read, or the token is short or no plain text.
    """
    given = {"--token": text, "--token-file": file, TOKEN_VARIABLE: variables.get(TOKEN_VARIABLE)}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"expected one token, found {' and '.join(named)}")
    if not named:
        return None
    token = given[named[0]] or ""
    if named[0] == "--token-file":
        try:
            token = Path(token).read_text().strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"--token-file {token}: expected a file with a token, found {error}") from error
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{named[0]}: expected at least {MIN_TOKEN} letters and digits, found {len(token)} characters; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes a token"
        )
    return token


def _name_of(host: str) -> str:
    """The host of 'host:port', in lower case, without the brackets of an IPv6 address."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name if rest == "" or rest.startswith(":") else ""
    return host.partition(":")[0].lower()
