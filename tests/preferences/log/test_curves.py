"""Curves of a log in a terminal: blocks by value, groups on one axis, means of many values."""

import pytest

from chainrule.preferences.curves import draw_curves, read_curves, sparkline


def test_blocks_follow_the_values() -> None:
    assert sparkline(range(8)) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▁▁"


@pytest.mark.parametrize("count", [1, 39, 40, 41, 1000])
def test_no_line_is_wider_than_asked(count: int) -> None:
    assert len(sparkline([0.0] * count, 40)) == min(count, 40)


def test_many_values_are_averaged() -> None:
    assert sparkline([0, 2, 7, 7], 2, 0, 7) == "▂█"


def test_curves_of_one_group_share_an_axis() -> None:
    lines = draw_curves({"rewards/chosen": [(1, 0.0), (2, 0.0)], "rewards/rejected": [(1, 0.0), (2, -7.0)]})
    assert lines == ["rewards/chosen    ██  0 → 0", "rewards/rejected  █▁  0 → -7"]


def test_curves_are_read_with_the_loss_and_only_where_there_are_such_metrics() -> None:
    records = [{"event": "step", "step": 1, "nats_per_token": 0.7, "kl": 0.1},
               {"event": "evaluation", "step": 1, "loss": 0.6, "rewards/accuracies": 1.0},
               {"event": "step", "step": 2, "nats_per_token": 9.0}]
    assert read_curves(records) == {"loss": [(1, 0.7)], "kl": [(1, 0.1)]}
    assert read_curves(records, "evaluation") == {"loss": [(1, 0.6)], "rewards/accuracies": [(1, 1.0)]}
    assert read_curves(records[2:]) == {}
