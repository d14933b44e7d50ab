"""Text on every shade can be read, in both themes."""

import pytest

from expound.reports.highlighted import colors

PAIRS = [
    (name, shade)
    for name, theme in colors.THEMES.items()
    for shade in (*theme.positive, *theme.negative, *theme.unsigned)
]


def _linear(value):
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _contrast(one, other):
    """WCAG 2.2, "relative luminance" and "contrast ratio", written out again."""
    lights = []
    for color in (one, other):
        red, green, blue = (_linear(int(color[at : at + 2], 16) / 255) for at in (1, 3, 5))
        lights.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_contrast_has_the_known_values():
    assert _contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert _contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3)


def test_text_on_each_shade_has_contrast():
    for name, shade in PAIRS:
        assert _contrast(shade, colors.THEMES[name].text) >= 4.5, (name, shade)


@pytest.mark.parametrize("theme", colors.THEMES.values(), ids=colors.THEMES)
def test_text_and_lines_on_the_page_have_contrast(theme):
    for ground in (theme.background, theme.surface):
        for ink in (theme.text, theme.muted, theme.accent):
            assert _contrast(ink, ground) >= 4.5
        for line in theme.series:
            assert _contrast(line, ground) >= 3.0
    assert len(set(theme.series)) == len(theme.series)


@pytest.mark.parametrize("theme", colors.THEMES.values(), ids=colors.THEMES)
def test_shades_grow_away_from_the_ground(theme):
    for shades in (theme.positive, theme.negative, theme.unsigned):
        assert len(shades) == colors.LEVELS
        steps = [_contrast(shade, theme.surface) for shade in shades]
        assert steps == sorted(steps)
        assert len(set(steps)) == colors.LEVELS


def test_levels_round_clip_and_ignore_what_is_not_a_number():
    assert [colors.score_to_level(score, 2.0) for score in (0, 2, -2, 1, 5, -5)] == [0, 8, -8, 4, 8, -8]
    assert (
        colors.score_to_level(float("nan"), 1.0)
        == colors.score_to_level(1.0, 0.0)
        == colors.score_to_level(float("inf"), 1.0)
        == 0
    )


def test_classes_and_shades_of_levels():
    assert [colors.level_to_css_class(step, signed=True) for step in (-8, 0, 1)] == ["n8", "", "p1"]
    assert colors.level_to_css_class(3, signed=False) == "u3"
    assert colors.level_to_css_class(-3, signed=False) == ""
    assert colors.level_to_color(colors.LIGHT, -3, signed=False) is None
    assert colors.level_to_color(colors.DARK, 0, signed=True) is None
    assert colors.level_to_color(colors.DARK, -8, signed=True) == colors.DARK.negative[-1]
    assert colors.level_to_color(colors.LIGHT, 1, signed=False) == colors.LIGHT.unsigned[0]
