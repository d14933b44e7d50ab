"""Words that can be swapped in a text, by hand."""

from __future__ import annotations

import pytest

from expound import ExpoundError
from expound.data.swaps import KINDS, apply_swaps, find_swaps, lists


def list_swaps(text, **options):
    return [(swap.kind, text[swap.start : swap.end], swap.choices) for swap in find_swaps(text, **options)]


def test_contractions_are_expanded_and_made_as_the_text_writes_them():
    cases = [
        ("It's a film", "It's", "It is"),
        ("it 's a film", "it 's", "it is"),
        ("I don't care", "don't", "do not"),
        ("I don’t care", "don’t", "do not"),
        ("they ca n't", "ca n't", "cannot"),
        ("WE'RE here", "WE'RE", "WE ARE"),
        ("it is a film", "it is", "it's"),
        ("It is n't bad , it is long", "it is", "it 's"),
        ("You will see", "You will", "You'll"),
        ("we could not see", "could not", "couldn't"),
    ]
    for text, stretch, word in cases:
        assert ("contraction", stretch, (word,)) in list_swaps(text, kinds=["contraction"])


def test_what_only_looks_like_a_contraction_stays():
    for text in ["yes, it is.", "it's been long", "she 's got it", "the dog's bone", "its plot", "can"]:
        assert list_swaps(text, kinds=["contraction"]) == []


def test_expanding_undoes_contracting():
    for full, short in (("do not", "don't"), ("it is", "it's"), ("we have", "we've"), ("i am", "i'm")):
        (swap,) = find_swaps(f"{full} run")
        contracted = apply_swaps(f"{full} run", [swap], {0: swap.choices[0]})
        assert contracted == f"{short} run"
        (back,) = find_swaps(contracted)
        assert apply_swaps(contracted, [back], {0: back.choices[0]}) == f"{full} run"


def test_names_become_names_of_the_same_kind_and_places_places():
    for text, stretch, kind, row in (
        ("says Mary", "Mary", "name", lists.WOMEN),
        ("says Peter", "Peter", "name", lists.MEN),
        ("Dr Smith", "Smith", "name", lists.SURNAMES),
        ("in New York now", "New York", "place", lists.CITIES),
        ("from South Korea", "South Korea", "place", lists.COUNTRIES),
    ):
        ((what, where, choices),) = list_swaps(text, choices=99)
        assert (what, where) == (kind, stretch)
        assert set(choices) == set(row) - {stretch}


def test_words_take_the_case_of_what_they_replace_and_lower_case_counts_in_lower_case_texts_only():
    ((_, _, choices),) = list_swaps("MADRID!")
    assert all(choice.isupper() for choice in choices)
    ((_, _, choices),) = list_swaps("to madrid with love")
    assert all(choice.islower() for choice in choices)
    assert list_swaps("To madrid with love") == []
    assert list_swaps("a christmas carol for sharon and grant") == []


def test_which_numbers_are_numbers():
    cases = [
        ("25 men", {"25"}),
        ("two men", {"two"}),
        ("twenty-five men", set()),
        ("3.5 of 10/10 on 1994-05-02 at 9:30 for 1,000 in the 1990s", set()),
        ("42", {"42"}),
        ("(7), 8.", {"7", "8"}),
        ("one man", set()),
        ("٣ men", set()),
    ]
    for text, numbers in cases:
        assert {stretch for _, stretch, _ in list_swaps(text, kinds=["number"])} == numbers


def test_digits_move_by_a_fifth_at_most_and_never_stay():
    for value in (1, 2, 7, 100, 2024):
        ((_, _, choices),) = list_swaps(f"{value} men", choices=1000)
        assert str(value) not in choices
        assert all(int(choice) > 0 and abs(int(choice) - value) <= max(1, value // 5) for choice in choices)


def test_texts_without_anything_to_swap_have_no_swaps():
    for text in ["", "a dull film", "静かな町の映画", "Ελλάδα", "🙂🙂", "naïve jokes"]:
        assert find_swaps(text) == []


def test_swaps_stand_where_they_say_also_behind_characters_of_several_bytes():
    text = "🙂 Zoë aß 3 Äpfel in Zürich , é n’est pas , don’t"
    places = find_swaps(text)
    assert [text[swap.start : swap.end] for swap in places] == ["Zoë", "3", "Zürich", "don’t"]
    changed = apply_swaps(text, places, dict(enumerate(["Eva", "4", "Bogotá", "do not"])))
    assert changed == "🙂 Eva aß 4 Äpfel in Bogotá , é n’est pas , do not"


def test_swaps_do_not_overlap_and_the_longer_one_wins():
    text = "I don't know New York , South Africa or David Smith ; it's 2 of twenty"
    ends = [0]
    for swap in find_swaps(text):
        assert swap.start >= ends[-1]
        ends.append(swap.end)
    assert len(ends) == 9


def test_draws_depend_on_seed_and_text_alone():
    text = "Mary met Peter in Paris"
    assert find_swaps(text, seed=1) == find_swaps(text, seed=1)
    assert find_swaps(text, seed=1) != find_swaps(text, seed=2)
    assert all(len(swap.choices) == 3 for swap in find_swaps(text, choices=3))


def test_bad_choices_are_named():
    with pytest.raises(ExpoundError, match="unknown kind of swap 'names'"):
        find_swaps("Mary", kinds=["names"])
    with pytest.raises(ExpoundError, match="at least 1"):
        find_swaps("Mary", choices=0)
    assert set(KINDS) == {"contraction", "name", "place", "number"}


def test_no_list_has_a_word_twice():
    for row in (lists.WOMEN, lists.MEN, lists.SURNAMES, lists.CITIES, lists.COUNTRIES):
        assert len(set(row)) == len(row)
    assert not set(lists.WOMEN) & set(lists.MEN)
    assert not (set(lists.WOMEN) | set(lists.MEN)) & set(lists.SURNAMES)
