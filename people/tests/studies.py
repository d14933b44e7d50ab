"""A site with studies, and the people who take part, for the tests of the pages."""

from __future__ import annotations

import re
from pathlib import Path

import expound
import sites
from expound.evaluation.compare.comparison import Comparison
from expound_people.application import make_application
from expound_people.changes import add_changed_versions
from expound_people.items import make_items
from expound_people.kinds import KINDS
from expound_people.projects import create_project, find_project, invite_annotators
from expound_people.protocol.file import ChangePart
from expound_people.storage import Storage
from sites import METHODS, TEXTS, csrf, model, stranger


def storage(folder):
    """A new SQLite storage."""
    return Storage(f"sqlite:///{folder}/studies.db")


def pages(folder, *, results=(), database=None):
    """The pages of the studies in a new storage, which can be made of these comparisons."""
    found = {Path(result).name: Comparison.load(result) for result in results}
    return make_application(storage(folder) if database is None else database, found)


def site(folder, *, results=(), with_model=True, database=None, **changes):
    """A site with every room."""
    if not with_model:
        changes |= {"explorer": None}
    return sites.site(application=pages(folder, results=results, database=database), **changes)


def project(made, name="first", kind="rank", people=("Ada", "Ben"), texts=TEXTS, methods=METHODS, **options):
    """Creates a study of these texts, and returns the tokens of its invitations by the person's name."""
    items = [(method, item) for method in methods for item in expound.attribute(model(), list(texts), method)]
    labels = [{"label_name": ("good", "bad")[index % 2]} for index in range(len(texts))]
    found = make_items(items, labels)
    if KINDS[kind].has_changes:
        found = add_changed_versions(model(), found, ChangePart())
    with made.application.storage.write_session() as session:
        create_project(session, name, found, kind, labels=model().labels, **options)
    with made.application.storage.write_session() as session:
        return invite_annotators(session, find_project(session, name), list(people))


def annotator(made, token):
    """A client of a person who has followed an invitation."""
    client = stranger(made)
    page = client.get(f"/join/{token}")
    assert page.status_code == 200, page.text
    assert client.post(f"/join/{token}", data={"csrf": csrf(page)}).status_code == 200
    return client


def letters(page):
    """The letters of the explanations on a ranking page."""
    return re.findall(r"<h2[^>]*>Explanation (\w+)</h2>", page.text)


def rank(client, place, ranks):
    """Sends a ranking by letter, and returns the next page."""
    page = client.get(f"/annotate/{place}")
    given = {f"rank-{letter}": str(value) for letter, value in ranks.items()}
    return client.post(f"/annotate/{place}", data={"csrf": csrf(page), "phase": "", "seconds": "2.5"} | given)
