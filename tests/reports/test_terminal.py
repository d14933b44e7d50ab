"""The output on a terminal, with and without color."""

import io

import pytest
from rich.console import Console
from rich.style import Style

from expound.reports.highlighted import colors
from expound.reports.tables.board_table import choose_decimals, make_board_table
from expound.reports.tables.leaderboard import make_leaderboard
from expound.reports.terminal import render_explanation
from reports.boards import CARDS, explanation, image, results


def _print(drawn, width=120, **kwargs):
    console = Console(file=io.StringIO(), width=width, **kwargs)
    console.print(drawn)
    return console.file.getvalue()


def _find_styled_spans(text):
    return [span for span in text.spans if isinstance(span.style, Style)]


def _grounds(item):
    text = render_explanation(item, plain=False)
    inked = [span for span in _find_styled_spans(text) if span.style.bgcolor]
    assert all(span.style.color.triplet.hex == colors.LIGHT.text for span in inked)
    return {text.plain[span.start : span.end]: span.style.bgcolor.triplet.hex for span in inked}


def test_words_have_the_ground_of_their_level():
    assert _grounds(explanation("bad so good", [-1, 0, 0.5])) == {
        "bad": colors.LIGHT.negative[7],
        "good": colors.LIGHT.positive[3],
    }
    assert _grounds(explanation("much some", [1, 0.5], signed=False)) == {
        "much": colors.LIGHT.unsigned[7],
        "some": colors.LIGHT.unsigned[3],
    }


def test_marked_words_are_underlined():
    text = render_explanation(explanation("bad so good", [-1, 0, 0.5]), [((4, 11),)], plain=False)
    underlined = [text.plain[span.start : span.end] for span in _find_styled_spans(text) if span.style.underline]
    assert "".join(underlined) == "so good"


def test_the_head_says_method_target_probability_and_prediction():
    head = render_explanation(explanation(truncated=True, prediction="negative"), plain=True).plain.split("\n")[0]
    assert head == "occlusion · explains positive (0.75) · prediction negative · input cut to the model's length"


def test_without_color_scores_stand_in_the_text():
    shown = render_explanation(explanation("bad so good", [-1, 0, 0.5]), [((4, 11),)], plain=True).plain
    assert shown.endswith("bad(-1) [[so]] [[good]](+0.5)")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_colors_are_left_out_where_there_are_none(monkeypatch, environment):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert "(+0.5)" in render_explanation(explanation("bad good", [-1, 0.5])).plain


def test_colors_are_on_in_a_terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "(+0.5)" not in render_explanation(explanation("bad good", [-1, 0.5])).plain


def test_a_text_cannot_command_the_terminal():
    hostile = "\x1b[2J\x07[red]x[/red]\x9b31m"
    item = explanation(hostile, [1], label=hostile, method=hostile)
    for plain in (True, False):
        shown = _print(render_explanation(item, plain=plain))
        assert not set("\x1b\x07\x9b") & set(shown)
        assert "[red]x[/red]" in shown


def test_images_are_rows_of_patches():
    colored, plain = (render_explanation(image(2, 3), plain=plain).plain.split("\n")[1:] for plain in (False, True))
    assert colored == ["      ", "      "]
    assert [row.split() for row in plain] == [["-1", "-0.64", "-0.27"], ["+0.091", "+0.45", "+1"]][:0] or len(
        plain
    ) == 2
    assert plain[0].split()[0] == "-1"
    assert plain[1].split()[-1] == "+1"


def test_the_table_marks_the_best():
    frame = results()
    frame["sufficiency"] += (frame["method"] != "occlusion") * 3
    board = make_leaderboard(frame, CARDS)
    shown = _print(make_board_table(board))
    assert "Comprehensiveness ↑" in shown
    assert "Sufficiency ↓" in shown
    place = int(board.mean[:, 1].argmin())
    digits = choose_decimals(board.mean[:, 1])[0]
    assert f" {board.mean[place, 1]:.{digits}f}*" in shown
    assert f" {board.low[place, 1]:.{digits}f}…{board.high[place, 1]:.{digits}f}" in shown
    assert "n=32" in shown
    colored = _print(make_board_table(board), force_terminal=True, color_system="truecolor")
    assert f"\x1b[1m{board.mean[place, 1]:.{digits}f}" in colored


TITLES = {"random": "Random", "attention": "Attention of the last layer", "occlusion": "Occlusion"}


def test_no_word_is_broken_on_a_narrow_terminal():
    for width in [32, 40, 60, 80, 200]:
        board = make_leaderboard(results(), CARDS, titles=TITLES)
        shown, wide = (_print(make_board_table(board), each) for each in (width, 300))
        assert max(map(len, shown.splitlines())) <= width
        known = set(wide.split()) | {"Too", "narrow", "for", "widen", "the", "terminal."}
        named = {"intervals", "Sufficiency", "Seconds"}
        found = {word.strip(",:") for word in shown.replace("─", "").split()}
        assert found <= {word.strip(",:") for word in known | named}


def test_intervals_go_first_then_the_last_metrics_but_seconds():
    board = make_leaderboard(results(), CARDS, titles=TITLES)
    whole, means, two, one = (_print(make_board_table(board), width) for width in (90, 74, 58, 48))
    interval = f"{board.low[0, 0]:.3f}…{board.high[0, 0]:.3f}"
    assert interval in whole
    assert "Too narrow" not in whole
    assert interval not in means
    assert "Sufficiency ↓" in means
    assert "Too narrow for intervals: widen" in " ".join(means.split())
    assert "Seconds ↓" in two
    assert "Too narrow for intervals, Sufficiency:" in " ".join(two.split())
    assert "Too narrow for intervals, Sufficiency, Seconds:" in " ".join(one.split())


def test_the_legend_is_a_sentence():
    shown = " ".join(make_board_table(make_leaderboard(results(), CARDS)).to_text(200).split())
    assert "Numbers with * are the best of their column, or not significantly worse (" in shown
    assert shown.endswith("and n if a metric is defined for some examples only.")


def test_a_method_at_chance_says_so():
    frame = results()
    frame["comprehensiveness"] += (frame["method"] == "occlusion") * 3
    shown = _print(make_board_table(make_leaderboard(frame, CARDS)))
    assert shown.count("no better than random") == 1
    assert shown.index("attention") < shown.index("no better than random")


def test_tables_of_nothing():
    for frame in (results(examples=0), results().assign(seconds=float("nan"))):
        assert "method" in _print(make_board_table(make_leaderboard(frame, CARDS)))
    assert "method" in _print(make_board_table(make_leaderboard(results(), [])))
