"""The pages are safe by default: one test for each promise."""

from __future__ import annotations

import re
from io import BytesIO

import pytest
from PIL import Image
from sqlalchemy import select
from starlette.testclient import TestClient
from typer.testing import CliRunner

from expound.cli import app as commands
from expound.errors import ExpoundError
from expound.serve import Limits, Site, create_app
from expound_people.exports import to_csv
from expound_people.items import StudyItem
from expound_people.projects import TOKEN_BYTES, create_project, digest_token, find_project, invite_annotators
from expound_people.tables import Annotator, AnnotatorAnswer
from sites import HERE, MARKUP, SCRIPT, TEXTS, TOKEN, admin, csrf, stranger
from studies import annotator, letters, pages, project, rank, site

OPEN = {"/sign-in", "/static/style.css", "/favicon.ico"}


def paths(made):
    """Every method and path of a site, with values for the parameters of the path."""
    found = []
    pending = list(create_app(made).routes)
    while pending:
        route = pending.pop()
        if hasattr(route, "original_router"):
            pending += route.original_router.routes
        else:
            filled = re.sub(r"{(place|annotator|example)}", "1", route.path)
            found += [(method, re.sub(r"{\w+}", "style.css", filled)) for method in route.methods - {"HEAD"}]
    return sorted(set(found))


def test_the_server_listens_on_loopback_unless_told_otherwise(start_server):
    assert start_server()["host"] == "127.0.0.1"
    assert start_server("--host", "0.0.0.0", "--public-host", "study.example")["host"] == "0.0.0.0"


def test_each_start_prints_an_address_with_a_new_token_that_opens_the_door(start_server):
    starts = [start_server() for _ in range(2)]
    tokens = []
    for start in starts:
        address = re.search(r"open: (\S+)", start["printed"]).group(1)
        assert address.startswith(f"http://127.0.0.1:{start['port']}/sign-in?token=")
        tokens.append(address.partition("token=")[2])
        client = TestClient(start["config"].app, base_url=HERE, headers={"accept": "text/html"})
        assert client.get("/studies", follow_redirects=False).status_code == 303
        client.get("/sign-in", params={"token": tokens[-1]})
        assert client.get("/studies", follow_redirects=False).status_code == 200
    assert len(set(tokens)) == 2
    assert all(len(token) == 43 for token in tokens)


def test_addresses_with_their_tokens_and_texts_are_not_logged(start_server):
    assert start_server()["config"].access_log is False


def test_every_page_but_signing_in_joining_and_annotating_needs_the_admin_token(full_site):
    client, seen = stranger(full_site), 0
    for method, path in paths(full_site):
        reply = client.request(method, path, follow_redirects=False)
        if path in OPEN or path.startswith(("/join/", "/take/", "/annotate")):
            continue
        seen += 1
        if method == "GET":
            assert (reply.status_code, reply.headers["location"][:9]) == (303, "/sign-in?"), path
        else:
            assert reply.status_code in (401, 403), (method, path)
    assert seen == 19


@pytest.mark.parametrize("guess", ["", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\udcff"])
def test_another_token_opens_nothing(full_site, guess):
    client = stranger(full_site)
    page = client.get("/sign-in", params={"token": guess.encode("utf-8", "surrogateescape").decode("latin-1")})
    assert "This is not the token" in page.text or not guess
    assert client.get("/studies", follow_redirects=False).status_code == 303


def test_the_cookie_of_another_server_opens_nothing(full_site, tmp_path):
    database = full_site.application.storage
    other = stranger(site(tmp_path / "other", database=database))
    other.cookies.update(admin(full_site).cookies)
    assert other.get("/studies", follow_redirects=False).status_code == 200
    strange = stranger(Site("another-token-of-many-letters", application=pages(tmp_path, database=database)))
    strange.cookies.update(admin(full_site).cookies)
    assert strange.get("/studies", follow_redirects=False).status_code == 303


def test_a_short_admin_token_is_refused(full_site):
    with pytest.raises(ExpoundError, match="at least 20"):
        full_site.__class__("short")


def test_cookies_cannot_be_read_by_scripts_or_sent_by_other_sites(full_site):
    reply = stranger(full_site).get("/sign-in", params={"token": TOKEN}, follow_redirects=False)
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie


def test_signing_in_leads_to_no_other_site(full_site):
    for address in ("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "/\nx"):
        reply = stranger(full_site).get("/sign-in", params={"token": TOKEN, "next": address}, follow_redirects=False)
        assert reply.headers["location"] == "/"
    reply = stranger(full_site).get(
        "/sign-in", params={"token": TOKEN, "next": "/explore?text=a"}, follow_redirects=False
    )
    assert reply.headers["location"] == "/explore?text=a"


def test_invitations_are_256_bits_of_which_only_a_digest_is_kept(full_site):
    tokens = project(full_site, people=[f"person {number}" for number in range(50)])
    assert len(set(tokens.values())) == 50
    assert all(len(token) >= 8 * TOKEN_BYTES / 6 for token in tokens.values())
    with full_site.application.storage.read_session() as session:
        kept = set(session.scalars(select(Annotator.token_digest)))
    assert kept == {digest_token(token) for token in tokens.values()}
    assert not kept & set(tokens.values())


def test_a_revoked_invitation_lets_nobody_in_and_ends_who_is_in(full_site, chief):
    tokens = project(full_site)
    ada, ben = annotator(full_site, tokens["Ada"]), annotator(full_site, tokens["Ben"])
    page = chief.get("/studies/first")
    address = re.search(r'action="(/studies/first/invitations/\d+/revoke)"[^§]*?invitation of Ada', page.text).group(1)
    assert chief.post(address, data={"csrf": csrf(page)}).status_code == 200
    assert ada.get("/annotate").status_code == 403
    assert stranger(full_site).get(f"/join/{tokens['Ada']}").status_code == 403
    assert ben.get("/annotate").status_code == 200


def test_an_unknown_invitation_is_refused(full_site):
    project(full_site)
    client = stranger(full_site)
    assert client.get("/join/" + "x" * 43).status_code == 403
    client.cookies.set("expound-annotator", "x" * 43)
    assert client.get("/annotate/1").status_code == 403


def test_an_annotator_is_no_admin_and_sees_no_other_study(full_site):
    tokens = project(full_site)
    project(full_site, "second", people=["Cora"])
    ada = annotator(full_site, tokens["Ada"])
    assert ada.get("/studies/first", follow_redirects=False).status_code == 303
    assert "second" not in ada.get("/annotate").text


def test_a_form_without_the_pages_own_token_changes_nothing(full_site, chief):
    tokens = project(full_site)
    ada = annotator(full_site, tokens["Ada"])
    ranks = {f"rank-{letter}": "1" for letter in letters(ada.get("/annotate/1"))}
    foreign = csrf(annotator(full_site, tokens["Ben"]).get("/annotate"))
    for token in ("", "x", foreign, csrf(chief.get("/studies"))):
        assert ada.post("/annotate/1", data={"csrf": token, "phase": ""} | ranks).status_code == 403
        assert (
            chief.post(
                "/studies/first/invitations",
                data={"csrf": token if token != csrf(chief.get("/studies")) else "", "names": "Eve"},
            ).status_code
            == 403
        )
    with full_site.application.storage.read_session() as session:
        assert session.scalar(select(AnnotatorAnswer)) is None
        assert {person.name for person in find_project(session, "first").annotators} == {"Ada", "Ben"}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "127.0.0.1"},
    ],
)
def test_a_request_from_another_site_is_refused_even_with_the_right_form(full_site, chief, headers):
    project(full_site)
    data = {"csrf": csrf(chief.get("/studies/first")), "names": "Eve"}
    assert chief.post("/studies/first/invitations", data=data, headers=headers).status_code == 403
    assert chief.post("/studies/first/invitations", data=data, headers={"origin": HERE}).status_code == 200


def test_an_unknown_host_name_is_refused(full_site):
    client = stranger(full_site)
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", ""):
        assert client.get("/sign-in", headers={"host": host}).status_code == 421
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert client.get("/sign-in", headers={"host": host}).status_code == 200


def test_markup_in_texts_and_labels_is_escaped_on_every_page(full_site, chief):
    tokens = project(full_site, question=f"What about {SCRIPT}?", people=["<i>Ada</i>"])
    project(full_site, "marked", "highlight", ["<i>Ben</i>"])
    project(full_site, "guessed", "simulate", ["Cy"])
    ada = annotator(full_site, tokens["<i>Ada</i>"])
    pages = [
        chief.get("/explore", params={"text": TEXTS[0], "whole": "1", "method": ["saliency", "globenc"]}),
        chief.get("/explore", params={"text": "a film", "target": SCRIPT, "whole": "1"}),
        chief.get("/explore", params={"text": "a film", "method": SCRIPT}),
        chief.get("/explore/export/html", params={"text": TEXTS[0], "method": "saliency"}),
        chief.get("/studies/first"),
        chief.get("/studies/first/results"),
        chief.get("/studies/" + SCRIPT.replace("/", "%2F")),
        ada.get("/annotate"),
        *(ada.get(f"/annotate/{place}") for place in range(1, 5)),
    ]
    for page in pages:
        assert SCRIPT not in page.text, page.url
        assert MARKUP not in page.text, page.url
        assert "<i>" not in re.sub(r'<i class="[pnu]\d"></i>', "", page.text), page.url
    assert "&lt;script&gt;" in pages[0].text
    assert "&lt;b onclick=x&gt;bold&lt;/b&gt;" in pages[0].text
    stream = chief.get("/explore/stream", params={"text": TEXTS[0], "method": "saliency"}).text
    assert SCRIPT not in stream
    assert "&lt;script&gt;" in stream


def test_pages_allow_only_their_own_scripts(full_site, chief):
    for address in ("/explore?text=a+film", "/studies", "/sign-in", "/nowhere"):
        headers = chief.get(address).headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"


def test_texts_beyond_the_limit_are_refused(tmp_path):
    chief = admin(site(tmp_path, limits=Limits(text_length=50)))
    assert chief.get("/explore", params={"text": "a " * 25}).status_code == 200
    refused = chief.get("/explore", params={"text": "a " * 26})
    assert (refused.status_code, "may have 50 characters" in refused.text) == (422, True)
    assert chief.get("/explore", params={"text": "a", "pair": "b" * 51}).status_code == 422


def test_bodies_beyond_the_limits_are_refused_even_without_content_length(tmp_path):
    chief = admin(site(tmp_path, limits=Limits(form_bytes=2000, upload_bytes=5000)))
    token = csrf(chief.get("/studies"))
    assert chief.post("/studies", data={"csrf": token, "name": "x" * 2000}).status_code == 413

    def chunks():
        yield b"name=" + b"x" * 1500
        yield b"x" * 1500

    untold = chief.post("/studies", content=chunks(), headers={"content-type": "application/x-www-form-urlencoded"})
    assert untold.status_code == 413
    file = {"file": ("a.json", b"[" + b" " * 6000 + b"]")}
    assert chief.post("/studies/import", data={"csrf": token}, files=file).status_code == 413


def test_forms_of_too_many_fields_are_refused(tmp_path):
    chief = admin(site(tmp_path, limits=Limits(form_fields=20)))
    data = {"csrf": csrf(chief.get("/studies")), **{f"f{number}": "x" for number in range(30)}}
    assert chief.post("/studies", data=data, files={"file": b"x"}).status_code == 400


def png_bytes(width, height, form="PNG"):
    buffer = BytesIO()
    Image.new("1", (width, height)).save(buffer, format=form)
    return buffer.getvalue()


def test_only_pictures_of_a_known_kind_and_size_are_taken(tmp_path):
    chief = admin(site(tmp_path, limits=Limits(picture_pixels=10_000)))
    token = csrf(chief.get("/explore"))

    def upload(content):
        return chief.post(
            "/picture", data={"csrf": token}, files={"file": ("../../x.png", content)}, follow_redirects=False
        )

    assert upload(png_bytes(100, 100)).status_code == 303
    assert "pixels" in upload(png_bytes(101, 100)).text
    for content in (
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"GIF89a",
        png_bytes(9, 9)[:40],
        png_bytes(9, 9, "TIFF"),
    ):
        reply = upload(content)
        assert (reply.status_code, "expected a picture" in reply.text) == (422, True)


SECRET = "nobody shall read this"
AWAY = ["../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "....//secret.txt", "/etc/passwd", "..\\secret.txt"]


@pytest.mark.parametrize("where", AWAY)
def test_no_path_from_a_request_reaches_the_file_system(full_site, chief, tmp_path, comparison, where):
    (tmp_path / "secret.txt").write_text(SECRET)
    (comparison.parent / "secret.txt").write_text(SECRET)
    project(full_site)
    rooms = ["/static/", "/explore/picture/", "/explore/heads/", "/explore/export/"]
    rooms += ["/studies/", "/studies/first/export/", "/annotate/", "/join/"]
    for room in rooms:
        reply = chief.get(room + where)
        assert reply.status_code in (303, 403, 404, 422), (room, reply.status_code)
        assert SECRET not in reply.text
        assert "root:" not in reply.text
    asked = {"text": "a film", "whole": "1"}
    for field in ("model", "method", "picture", "unit"):
        names = [where, f"parameterized_attention:{where}", f"saliency?x={where}"]
        for name in names:
            reply = chief.get("/explore", params=asked | {field: name})
            assert reply.status_code == 422 or field == "picture"
            assert SECRET not in reply.text


def test_a_learned_method_that_the_server_was_not_given_is_never_loaded(chief, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr("expound.explainers.base.Explainer.from_pretrained", loaded.append)
    reply = chief.get(
        "/explore", params={"text": "a film", "method": f"parameterized_attention:{tmp_path}", "whole": "1"}
    )
    assert reply.status_code == 422
    assert loaded == []


def test_a_file_for_a_spreadsheet_holds_no_formula(full_site):
    evil = "=HYPERLINK('http://evil.example')"
    tokens = project(full_site, people=[evil])
    client = annotator(full_site, tokens[evil])
    rank(client, 1, dict.fromkeys(letters(client.get("/annotate/1")), 1))
    with full_site.application.storage.read_session() as session:
        lines = to_csv(session, find_project(session, "first")).decode().splitlines()
    assert f",'{evil}" in lines[1]
    assert f",{evil}" not in lines[1]


def test_details_of_unexpected_errors_are_not_shown(full_site, monkeypatch):
    def fail(*_):
        raise RuntimeError(SECRET)

    monkeypatch.setattr("expound_people.manage.compute_findings", fail)
    project(full_site)
    reply = admin(full_site).get("/studies/first/results")
    assert (reply.status_code, SECRET in reply.text, "went wrong" in reply.text) == (500, False, True)


def test_names_and_numbers_of_studies_are_checked(full_site, chief):
    token = csrf(chief.get("/studies"))
    good = {"csrf": token, "name": "new", "source": "reviews", "kind": "rank", "limit": "3", "seed": "1"}
    for wrong in ({"name": "a/b"}, {"name": ""}, {"name": "x" * 81}, {"source": "../x"}, {"kind": "y"}, {"limit": "0"},
                  {"limit": "9" * 30}, {"limit": "-1"}, {"seed": "x"}):  # fmt: skip
        assert chief.post("/studies", data=good | wrong).status_code == 422, wrong
    assert chief.post("/studies", data=good).status_code == 200
    with full_site.application.storage.write_session() as session, pytest.raises(ExpoundError, match="already"):
        create_project(session, "new", [StudyItem(("a",))], "highlight")
    with full_site.application.storage.write_session() as session, pytest.raises(ExpoundError, match="1 to 200"):
        invite_annotators(session, find_project(session, "new"), [str(number) for number in range(201)])


def test_invalid_numbers_are_refused(full_site, chief):
    project(full_site)
    data = {"csrf": csrf(chief.get("/studies")), "name": "new", "source": "reviews", "kind": "rank"}
    for count in ("\N{SUPERSCRIPT TWO}", "9" * 5000):
        assert chief.post("/studies", data=data | {"limit": count}).status_code == 422
        assert chief.get(f"/explore/picture/example-{count}").status_code == 422
        assert chief.post("/studies", data=data, headers={"content-length": count.encode("latin-1")}).status_code == 413
    for number in ("0", "9" * 30, "9" * 5000):
        assert chief.get(f"/explore/picture/example-{number}").status_code == 422
        assert chief.post(f"/studies/first/invitations/{number}/revoke", data=data).status_code == 422


def test_serve_without_anything_to_serve_is_refused():
    result = CliRunner().invoke(commands, ["serve"])
    assert "nothing to serve" in str(result.exception)
