"""The host names that the server accepts, HEAD requests, and the addresses that it gives to people."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from expound.cli.shared.server import _public_address, _url_host
from expound.serve import create_app
from expound.serve.security_headers import HOST_PATTERN
from sites import HERE, admin, csrf, stranger
from studies import annotator, project, site

STRANGE = [
    "127.0.0.1:1@evil.com",
    "127.0.0.1:8000@evil.com",
    "evil.com#127.0.0.1",
    "127.0.0.1/evil.com",
    "127.0.0.1\\evil.com",
    "127.0.0.1:",
    "127.0.0.1:0",
    "127.0.0.1:65536",
    "127.0.0.1:99999",
    "127.0.0.1:80:80",
    "127.0.0.1:٣",
    "127.0.0.1:-1",
    "127.0.0.1:+80",
    "127.0.0.1: 80",
    "127.0.0.1, evil.com",
    "127.0.0.1.",
    "127.0.0.1.evil.com",
    "user@127.0.0.1",
    "[::1",
    "[::1]]",
    "[::1]x:80",
    "[::1%25lo]",
    "::1",
    "evil.com",
    "",
]


def test_unknown_and_malformed_hosts_are_refused(full_site):
    client = admin(full_site)
    for host in STRANGE:
        assert client.get("/studies", headers={"host": host.encode()}).status_code == 421, host


def test_known_hosts_with_a_port_are_accepted(full_site):
    client = stranger(full_site)
    for host in ("127.0.0.1", "127.0.0.1:8000", "LocalHost:1", "[::1]", "[::1]:65535"):
        assert client.get("/sign-in", headers={"host": host}).status_code == 200, host


def test_a_host_that_matches_has_a_name_and_a_port_and_nothing_else():
    assert HOST_PATTERN.fullmatch("a.b:80").groupdict() == {"name": "a.b", "port": "80"}
    assert not HOST_PATTERN.fullmatch("a.b:80\n")


def test_invitations_begin_with_the_address_that_was_configured(tmp_path):
    made = site(tmp_path, address="https://study.example.org", hosts=("study.example.org", "127.0.0.1"))
    project(made)
    for host in ("127.0.0.1:4711", "study.example.org"):
        chief = TestClient(create_app(made), base_url=f"https://{host}", headers={"accept": "text/html"})
        chief.get("/sign-in", params={"token": made.token})
        form = {"csrf": csrf(chief.get("/studies")), "names": f"Cleo of {host}"}
        page = chief.post("/studies/first/invitations", data=form)
        assert re.search(r"https://study\.example\.org/join/[\w-]{20,}", page.text)
        assert "4711/join" not in page.text
    made.application.storage.close()


def test_cookies_are_for_https_alone_where_the_address_is(tmp_path):
    for address, secure in (("https://study.example.org", True), ("http://127.0.0.1:8000", False), ("", False)):
        made = site(tmp_path / str(len(address)), with_model=False, address=address)
        reply = stranger(made).get("/sign-in", params={"token": made.token}, follow_redirects=False)
        assert ("secure" in reply.headers["set-cookie"].lower()) is secure
        made.application.storage.close()


@pytest.mark.parametrize(
    ("options", "address", "hosts"),
    [
        ([], "http://127.0.0.1:PORT", ["127.0.0.1", "localhost"]),
        (["--public-host", "study.example.org"], "http://study.example.org:PORT", ["study.example.org"]),
        (["--public-host", "https://study.example.org"], "https://study.example.org", ["study.example.org"]),
        (
            ["--public-host", "https://study.example.org:8443/", "--public-host", "other"],
            "https://study.example.org:8443",
            ["other"],
        ),
        (["--public-host", "::1"], "http://[::1]:PORT", ["[::1]"]),
    ],
)
def test_what_serve_makes_of_names(start_server, options, address, hosts):
    start = start_server(*options)
    made = start["config"].app.state.site
    assert made.address == address.replace("PORT", str(start["port"]))
    assert set(hosts) <= set(made.hosts)
    assert f"open: {made.address}/sign-in?token=" in start["printed"]
    assert not start["refused"], "a program may connect as soon as it has read the address"
    client = TestClient(start["config"].app, base_url=HERE)
    for host in hosts:
        assert client.get("/sign-in", headers={"host": host}).status_code == 200


def test_names_and_addresses():
    cases = [
        ("a.example", "a.example", "http://a.example:7"),
        ("A.example", "a.example", "http://a.example:7"),
        ("fe80::1", "[fe80::1]", "http://[fe80::1]:7"),
        ("[fe80::1]", "[fe80::1]", "http://[fe80::1]:7"),
        ("https://[fe80::1]:8", "[fe80::1]", "https://[fe80::1]:8"),
        ("a.example:9", "a.example", "http://a.example:7"),
    ]
    for name, host, address in cases:
        assert (_url_host(name), _public_address(name, 7)) == (host, address)


def test_head_is_answered_as_get_without_the_body(tmp_path):
    made = site(tmp_path)
    chief, ada = admin(made), annotator(made, project(made)["Ada"])
    for client, path in (
        (stranger(made), "/sign-in"),
        (stranger(made), "/static/style.css"),
        (stranger(made), "/nothing"),
        (chief, "/studies"),
        (chief, "/explore"),
        (ada, "/annotate/1"),
    ):
        head, got = client.head(path), client.get(path)
        assert head.status_code == got.status_code, path
        assert head.content == b""
        assert head.headers["content-type"] == got.headers["content-type"]
        assert head.headers["content-length"] == got.headers["content-length"]
        assert head.headers["x-content-type-options"] == "nosniff"
    reply = stranger(made).head("/studies", follow_redirects=False)
    assert (reply.status_code, reply.headers["location"][:9]) == (303, "/sign-in?")
    made.application.storage.close()
