"""Who is let in to a policy's server."""

from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.datastructures import Headers

from chunkwise.errors import ConfigError
from chunkwise.policies import serve
from chunkwise.policies.access import Access, is_loopback, read_token

TOKEN = "a-token-of-enough-letters"


def status(access: Access, *headers: tuple[str, str], host: str | None = "localhost:8000") -> HTTPStatus | None:
    given = Headers([*([("Host", host)] if host is not None else []), *headers])
    refusal = access.refusal(given)
    return None if refusal is None else refusal[0]


def test_a_page_of_a_browser_is_let_in_if_it_is_named():
    here = Access()
    named = Access(origins=frozenset({"http://localhost:3000"}))
    assert status(here) is None
    for origin in ("http://evil.example", "http://localhost:3000", "null", ""):
        assert status(here, ("Origin", origin)) is HTTPStatus.FORBIDDEN
    assert status(named, ("Origin", "http://localhost:3000")) is None
    assert status(named, ("Origin", "http://localhost:3000.evil.example")) is HTTPStatus.FORBIDDEN
    assert status(named, ("Origin", "http://localhost:3000"), ("Origin", "http://b")) is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:9000", "[::1]:8000", "[::1]", "0.0.0.0:8000"]
)
def test_names_of_this_machine(host: str):
    assert status(Access(), host=host) is None


def test_the_name_that_the_server_was_told_to_listen_at_is_let_in():
    """Kills: `--host 127.0.0.2`, which nobody reaches under another name."""
    words = ["--host", "127.0.0.2", "run"]
    access = serve._access(serve._parser().parse_args(words))
    assert access.loopback
    assert status(access, host="127.0.0.2:8000") is None
    assert status(access, host="localhost:8000") is None
    assert status(access, host="127.0.0.3:8000") is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example", "", None, "[::1]evil", "::1"]
)
def test_a_name_that_leads_here_is_refused_on_the_loopback(host: str | None):
    """A page of evil.example whose name was made to lead to 127.0.0.1 (DNS rebinding)."""
    assert status(Access(), host=host) is HTTPStatus.FORBIDDEN
    assert status(Access(loopback=False), host=host) is None


def test_a_token_is_asked_for_as_openpis_client_sends_it():
    asked = Access(token=TOKEN, loopback=False)
    assert status(asked, ("Authorization", f"Api-Key {TOKEN}")) is None
    for wrong in (f"Api-Key {TOKEN}x", f"Api-Key {TOKEN[:-1]}", TOKEN, "Api-Key ", "", f"Bearer {TOKEN}", "Api-Key é"):
        assert status(asked, ("Authorization", wrong)) is HTTPStatus.UNAUTHORIZED
    assert status(asked) is HTTPStatus.UNAUTHORIZED
    assert status(asked, *[("Authorization", f"Api-Key {TOKEN}")] * 2) is HTTPStatus.UNAUTHORIZED
    refusal = asked.refusal(Headers())
    assert refusal is not None
    assert TOKEN not in refusal[1]
    assert TOKEN not in repr(asked)


def test_loopback():
    for host in ("127.0.0.1", "127.5.0.1", "localhost", "::1"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "::", "", "192.0.2.1", "no.such.host.invalid", "2001:db8::1"):
        assert not is_loopback(host), host


def test_where_a_token_comes_from(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(None, None, {}) is None
    assert read_token(TOKEN, None, {}) == TOKEN
    assert read_token(None, str(file), {}) == TOKEN
    assert read_token(None, None, {"CHUNKWISE_TOKEN": TOKEN}) == TOKEN
    with pytest.raises(ConfigError, match="expected one token, found --token and CHUNKWISE_TOKEN"):
        read_token(TOKEN, None, {"CHUNKWISE_TOKEN": TOKEN})
    with pytest.raises(ConfigError, match="expected a file with a token"):
        read_token(None, str(tmp_path / "none"), {})
    for short in ("", "fifteen-letters", "sixteen  letters", "sechzehn-zeichen-ä"):
        with pytest.raises(ConfigError, match="--token: expected at least 16 letters") as refused:
            read_token(short, None, {})
        assert not short or short not in str(refused.value)
