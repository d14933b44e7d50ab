"""The page shows what it was given, escapes all of it, and loads no other file."""

import re
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from expound.data.cards import MetricCard
from expound.reports.explanations import Explanations
from expound.reports.figures.curves import Curve, choose_ticks, make_charts
from expound.reports.highlighted.regions import encode_data_url
from expound.reports.pages import html
from expound.reports.pages.html import ExampleView, render_report
from expound.reports.tables.leaderboard import make_leaderboard
from reports.boards import CARDS, explanation, image, results

HOSTILE = (
    "</script><script>alert('x1')</script><img src=x onerror=alert(2)>\"' onmouseover='x' <!-- ]]> &amp; {{ 7 * 7 }}"
)
VOID = {"meta", "input", "img"}


class Page(HTMLParser):
    """Elements with their attributes and text, in order; fails on tags that do not match."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def tags(self, tag, **attributes):
        wanted = {name.replace("_", "-").strip("-"): value for name, value in attributes.items()}
        return [one for one in self.elements if one[0] == tag and wanted.items() <= one[1].items()]


def _curves(methods, metric="deletion"):
    x = np.array([0, 10, 50, 100])
    return [Curve(name, metric, x, 0.9 - x / 200, 0.8 - x / 200, 1 - x / 200) for name in methods]


def _report(methods=("random", "occlusion"), label="positive", text="The tea was warm, the rest was not.", **changes):
    items = {name: explanation(text, method=name, label=label) for name in methods}
    values = {
        "title": "A comparison",
        "leaderboard": make_leaderboard(results(methods), CARDS),
        "curves": _curves(methods),
        "examples": [ExampleView(3, (text,), label, "negative", [((0, 7),)], items)],
        "meta": {"seed": 0, "versions": {"numpy": np.__version__}},
    }
    return render_report(**{**values, **changes})


def test_hostile_strings_stay_text():
    card = MetricCard(name="seconds", family="cost", higher_is_better=False, paper=HOSTILE, label=HOSTILE)
    methods = (HOSTILE, "occlusion")
    calm, hostile = (
        Page(page)
        for page in (
            _report(
                ("random", "occlusion"), leaderboard=make_leaderboard(results(("random", "occlusion")), [CARDS[2]])
            ),
            _report(
                methods,
                HOSTILE,
                HOSTILE,
                title=HOSTILE,
                leaderboard=make_leaderboard(results(methods), [card]),
                curves=[curve._replace(metric=HOSTILE, x_label=HOSTILE, y_label=HOSTILE) for curve in _curves(methods)],
                meta={HOSTILE: HOSTILE, "list": [HOSTILE]},
            ),
        )
    )
    assert {tag for tag, _, _ in hostile.elements} == {tag for tag, _, _ in calm.elements}
    names = {name for _, attributes, _ in calm.elements for name in attributes}
    assert {name for _, attributes, _ in hostile.elements for name in attributes} == names
    assert not [name for name in names if name.startswith("on")]
    (script,) = hostile.tags("script")
    assert script[2] == (Path(html.__file__).parents[1] / "templates" / "report.js").read_text()
    assert hostile.tags("h1")[0][2] == HOSTILE
    assert hostile.tags("td")[-1][2] == f'["{HOSTILE.replace(chr(34), chr(92) + chr(34))}"]'
    shown = [element[2] for element in hostile.tags("p") if element[1].get("class") == "text"]
    assert shown == [HOSTILE, HOSTILE]


def test_hostile_attributions_stay_text():
    items = Explanations([explanation(HOSTILE, method=HOSTILE, label=HOSTILE, prediction=HOSTILE)])
    page = Page(items.to_html())
    assert not page.tags("script")
    assert not page.tags("img")
    assert HOSTILE in [element[2] for element in page.tags("p")]


@pytest.mark.parametrize("page", [_report(), Explanations([explanation()]).to_html()], ids=["report", "attributions"])
def test_a_page_needs_nothing_from_outside(page):
    parsed = Page(page)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    for _, attributes, _ in parsed.elements:
        assert not {"src", "srcset", "action", "data", "background"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
    (viewport,) = parsed.tags("meta", name="viewport")
    assert "width=device-width" in viewport[1]["content"]
    assert "prefers-color-scheme: dark" in page


def test_only_our_script_may_run():
    import base64
    import hashlib

    page = Page(_report())
    ((_, policy, _),) = page.tags("meta", http_equiv="Content-Security-Policy")
    (script,) = page.tags("script")
    digest = base64.b64encode(hashlib.sha256(script[2].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy["content"]
    assert "default-src 'none'" in policy["content"]


def test_the_table_has_the_numbers():
    board = make_leaderboard(results(("random", "occlusion")), CARDS)
    page = Page(_report(leaderboard=board))
    values = [float(element[1]["data-value"]) for element in page.tags("td") if "data-value" in element[1]]
    np.testing.assert_allclose(np.reshape(values, (2, 3)), board.mean)
    heads = page.tags("th", scope="col")
    assert [head[1].get("data-first") for head in heads] == [None, "descending", "ascending", "ascending"]
    assert len([button for button in page.tags("button") if button[2].endswith(("↑", "↓"))]) == 3


def test_words_say_their_scores_and_gold_is_marked():
    page = Page(_report(("occlusion",)))
    words = [one for one in page.tags("span") if one[1].get("title")]
    assert words[0][1] == {"class": "n8 gold", "title": "-1"}
    assert words[-1][1] == {"class": "p8", "title": "+1"}
    assert (
        "".join(one[2] for one in page.tags("span") if "gold" in one[1].get("class", "").split()) == "underlinedThe tea"
    )


def test_prediction_and_label_are_compared():
    assert "✗ wrong" in _report()
    right = _report(examples=[ExampleView(0, ("a",), "x", "x", (None,), {})])
    assert "✓ correct" in right
    unknown = _report(examples=[ExampleView(0, ("a",), None, "x", (None,), {})])
    assert "✓ correct" not in unknown
    assert "✗ wrong" not in unknown


def test_the_filter_knows_every_method():
    page = Page(_report(("one", "two"), curves=_curves(("three",))))
    assert sorted(one[1]["value"] for one in page.tags("input", type="checkbox")) == ["one", "three", "two"]
    filtered = {attributes["data-method"] for _, attributes, _ in page.elements if "data-method" in attributes}
    assert filtered == {"one", "two", "three"}


def test_what_was_explained_comes_first_and_metrics_are_grouped():
    page = _report(subject={"model": "a/model", "data": "csv:reviews.csv", "split": "test", "accuracy": "0.910"})
    parsed = Page(page)
    assert parsed.tags("title")[0][2] == "A comparison – a/model, csv:reviews.csv, test, 0.910"
    first = page.index('class="facts subject"')
    assert page.index("<h1>") < first < page.index('class="lead"') < page.index("<table")
    (groups,) = parsed.tags("tr", class_="groups")
    spans = [(head[2], head[1]["colspan"]) for head in parsed.tags("th", scope="colgroup")]
    assert spans == [("Faithfulness", "2"), ("Cost", "1")]
    assert groups[2].split() == ["FaithfulnessCost"]


def test_examples_after_the_first_are_folded():
    text = "The tea was warm."
    views = [ExampleView(index, (text,), "positive", "positive", [None], {}) for index in range(3)]
    folds = [element for element in Page(_report(examples=views)).tags("details") if element[1].get("class") == "card"]
    assert ["open" in attributes for _, attributes, _ in folds] == [True, False, False]
    assert all(text in content for _, _, content in folds)


def test_curves_say_their_values():
    page = Page(_report(("occlusion",)))
    titles = [one[2] for one in page.tags("title")][1:]
    assert titles == [f"occlusion: {value} at {x} %" for x, value in ((0, 0.9), (10, 0.85), (50, 0.65), (100, 0.4))]


def test_images_are_grids():
    items = {"occlusion": image(3, 4), "attention": image(3, 4, signed=False)}
    page = Page(_report(examples=[ExampleView(0, (), "heron", "heron", (), items)]))
    for grid in page.tags("div", **{"class": "patches"}):
        assert grid[1]["style"] == "--columns: 4"
        assert "3 × 4" in grid[1]["aria-label"]
    cells = [one[1] for one in page.tags("span") if one[1].get("title", "").startswith("row")]
    assert len(cells) == 24
    assert cells[0] == {"class": "n8", "title": "row 1, column 1: -1"}
    assert cells[11]["title"] == "row 3, column 4: +1"
    assert cells[23]["class"] == "u8"


def test_glossary_and_configuration():
    text = " ".join(one[2] for one in Page(_report()).tags("section"))
    assert "DeYoung et al. 2020" in text
    assert "higher is better; -1 to 1 for one example" in text
    assert "at least 0 for one example" in text
    assert f"versions.numpy{np.__version__}" in text.replace("\n", "")


EMPTY = {
    "nothing": {"leaderboard": make_leaderboard(results(examples=0), []), "curves": [], "examples": [], "meta": None},
    "no methods": {"leaderboard": make_leaderboard(results(examples=0), CARDS), "curves": [], "examples": []},
    "one example": {"leaderboard": make_leaderboard(results(examples=2).query("example == 1"), CARDS)},
    "nothing defined": {"leaderboard": make_leaderboard(results().assign(seconds=np.nan), CARDS)},
    "curve of nothing": {"curves": [Curve("a", "b", [], [], [], [])]},
    "curve of NaN": {"curves": [Curve("a", "b", [0, 1], [np.nan] * 2, [np.nan] * 2, [np.nan] * 2)]},
    "curve of one point": {"curves": [Curve("a", "b", [5], [0.5], [0.5], [0.5])]},
    "example without methods": {"examples": [ExampleView(0, ("only text",), None, "x", (None,), {})]},
    "scores of zero": {"examples": [ExampleView(0, ("a",), "x", "x", (None,), {"m": explanation("a", [0])})]},
    "scores that are not numbers": {
        "examples": [ExampleView(0, ("a b",), "x", "x", (), {"m": explanation("a b", [np.nan, 1])})]
    },
}


def test_degenerate_reports_are_drawn():
    for changes in EMPTY.values():
        page = Page(_report(**changes))
        assert page.tags("h1")
        assert "nan" not in " ".join(one[1].get("points", "") + one[1].get("data-value", "") for one in page.elements)


def test_attributions_of_nothing():
    assert "No explanations" in Explanations().to_html()


def test_to_html_writes_a_file(tmp_path):
    items = Explanations([explanation("好 tea")])
    assert items.to_html(tmp_path / "page.html") == (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<!doctype html>" in items.to_html()
    assert "<!doctype html>" not in items._repr_html_()


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0.31, 0.94, [0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.02, 0.05, [-0.02, 0, 0.02, 0.04, 0.06]),
        (5, 5, [5, 5.2, 5.4, 5.6, 5.8, 6]),
    ],
)
def test_ticks_are_round_and_enclose(low, high, expected):
    assert choose_ticks(low, high) == pytest.approx(expected)


def test_ticks_of_layers_are_whole_numbers():
    for last in [1, 2, 3, 5, 6, 11, 23, 31]:
        curve = Curve("a", "m", np.arange(last + 1), *(np.linspace(0, 1, last + 1) for _ in range(3)), x_label="layer")
        (chart,) = make_charts([curve], {"a": "Sequential integrated gradients (n_steps=10)"}, 1)
        assert all(tick.text.isdigit() for tick in chart.x_ticks)
        assert int(chart.x_ticks[-1].text) >= last


def test_a_long_name_beside_a_curve_ends_inside_the_chart():
    curve = Curve("a", "m", [0, 1], [0, 1], [0, 1], [0, 1])
    board = make_leaderboard(results(("a",)), CARDS, titles={"a": "Sequential integrated gradients (n_steps=10)"})
    page = Page(_report(("a",), leaderboard=board, curves=[curve], examples=[]))
    (label,) = page.tags("text", **{"class": "direct"})
    assert label[2] == "Sequential integrated g…"


def test_ticks_enclose_any_range():
    for seed in range(20):
        generator = np.random.default_rng(seed)
        low, high = np.sort(generator.normal(size=2) * 10.0 ** generator.integers(-6, 7))
        found = choose_ticks(float(low), float(high))
        assert found[0] <= low + 1e-9 * abs(low), seed
        assert found[-1] >= high - 1e-9 * abs(high), seed
        assert 3 <= len(found) <= 8, seed


def test_lines_lie_inside_their_frame_in_order():
    curve = Curve("a", "m", [100, 0, 50], [0.1, 0.9, np.nan], [0.0, 0.8, 0.3], [0.2, 1.0, 0.6])
    (chart,) = make_charts([curve], {"other": "Other", "a": "A", "random": "Random"}, 1)
    (line,) = chart.lines
    points = [tuple(map(float, point.split(","))) for point in line.path.split()]
    assert points == [(48.0, pytest.approx(34.6)), (364.0, pytest.approx(215.4))]
    assert len(line.band.split()) == 6
    assert (line.color, line.dashes) == (1, 1)
    assert (line.label, line.label_x, line.label_y, line.shown) == ("A", 372.0, 219.4, True)
    assert [tick.text for tick in chart.x_ticks] == ["0", "20", "40", "60", "80", "100"]


def test_labels_beside_the_lines_lie_apart_and_random_is_neutral():
    methods = {f"m{number}": f"M {number}" for number in range(12)} | {"random?seed=1": "Random"}
    x = np.array([0, 50])
    curves = [Curve(name, "m", x, 0.5 + x / 1e4, 0.4 + x / 1e4, 0.6 + x / 1e4) for name in methods]
    (chart,) = make_charts(curves, methods, 8, ["m0", "m3", "m4", "random?seed=1"])
    shown = [line for line in chart.lines if line.shown]
    places = sorted(line.label_y for line in shown)
    assert [line.label for line in shown] == ["M 0", "M 3", "M 4", "Random"]
    assert min(np.diff(places)) >= 14
    assert max(places) <= chart.y_ticks[0].at
    assert [line.color for line in chart.lines] == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 0]


def test_of_many_curves_the_best_and_random_stand_out():
    few, many = ("one", "two"), ("random", *(f"m{number}" for number in range(11)))
    for methods, count in ((few, 2), (many, 2)):
        page = Page(_report(methods, leaderboard=make_leaderboard(results(methods), CARDS), curves=_curves(methods)))
        pressed = [one[1]["data-pick"] for one in page.tags("button", aria_pressed="true")]
        assert len(pressed) >= count
        assert ("random" in pressed) == (methods is many)
        lines = [one[1] for one in page.tags("g")]
        assert {line["data-line"] for line in lines if "off" not in line["class"].split()} == set(pressed)


def test_an_image_lies_under_its_heat_map():
    address = encode_data_url(Image.new("RGB", (900, 300), "red"))
    assert Image.open(BytesIO(b64decode(address.partition(",")[2]))).size == (224, 75)
    view = ExampleView(0, (), "heron", "heron", (), {"occlusion": image(3, 4)}, address)
    page = Page(_report(examples=[view]))
    (shown,) = page.tags("img")
    assert shown[1]["src"] == address
    assert [one[1]["class"] for one in page.tags("div") if one[1].get("class") in ("picture", "patches")] == [
        "picture",
        "patches",
    ]
    ((_, policy, _),) = page.tags("meta", http_equiv="Content-Security-Policy")
    assert "img-src data:" in policy["content"]
