"""Agreement and intervals, against sums written out."""

import pytest

from chainrule.prefer.agreement import cohen_kappa, krippendorff_alpha, measure_agreement, share_of


def test_kappa_of_a_table_that_was_computed_by_hand():
    labels = [(0, 0)] * 20 + [(0, 1)] * 5 + [(1, 0)] * 10 + [(1, 1)] * 15
    assert cohen_kappa(labels) == pytest.approx((0.7 - 0.5) / 0.5)    # Po = 35/50, Pe = .5·.6 + .5·.4
    assert cohen_kappa([(0, 0)] * 3) is None
    assert cohen_kappa([]) is None


def test_alpha_of_krippendorffs_own_example():
    """Computing Krippendorff's alpha-reliability (2011), example C: four raters, nominal, alpha 0.743."""
    table = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None], [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
        [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None], [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
    ]
    units = [[label for label in column if label is not None] for column in zip(*table)]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)


def test_two_raters_have_kappa_and_three_have_alpha_on_their_shared_pairs():
    two = measure_agreement({"a": {"ann": 0, "bob": 0}, "b": {"ann": 1, "bob": None}, "c": {"ann": 1}})
    assert (two["pairs"], two["raw"]["share"], two["measure"]) == (2, 0.5, "Cohen's kappa")
    assert two["value"] == pytest.approx((0.5 - 0.25) / 0.75)
    three = measure_agreement({"a": {"ann": 0, "bob": 0}, "b": {"ann": 1, "cy": 1}})
    assert (three["measure"], three["value"]) == ("Krippendorff's alpha", 1.0)
    assert measure_agreement({})["value"] is None


def test_wilsons_interval():
    share = share_of(8, 10)
    assert (share.share, share.low, share.high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert share_of(0, 0).share is None
