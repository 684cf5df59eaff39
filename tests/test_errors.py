from chainrule.errors import UserError, did_you_mean


def test_a_near_word_is_offered_and_a_far_one_is_not() -> None:
    assert did_you_mean("ordr", ["order", "k"]) == " Did you mean order?"
    assert did_you_mean("xyz", ["order", "k"]) == ""
    assert did_you_mean("x", []) == ""


def test_a_users_mistake_is_a_value_error() -> None:
    assert issubclass(UserError, ValueError)
