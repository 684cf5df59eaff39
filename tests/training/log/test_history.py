"""The history in a log: points in order, and seconds that add up over restarts."""

from chainrule.training.log import Point, history, spent


def event(name, elapsed, **facts):
    return {"time": 0.0, "event": name, "elapsed": elapsed, **facts}


DESCENT = [
    event("text", 0.1, split="train", tokens=9),
    event("descent", 5.0),
    event("step", 7.0, tokens=100, bits_per_byte=4.0),
    event("evaluation", 8.0, bits_per_byte=3.5),
    event("note", 8.5),
    event("resume", 3.0),                                          # another process, another clock
    event("step", 4.0, tokens=200, bits_per_byte=3.0),
    event("step", 4.5, tokens=300, bits_per_byte=None),            # units that give no bytes back
    event("result", 9.0, bits_per_byte=2.0),
]
ROUNDS = [event("round", 0, seconds=2.0, bits_per_byte=8.0), event("round", 0, seconds=1.0, bits_per_byte=5.0)]


def test_the_history_of_a_descent_is_its_steps_and_evaluations():
    steps = Point(100, 2.0, 4.0, False), Point(200, 4.0, 3.0, False)
    assert history(DESCENT, 50) == [steps[0], Point(100, 3.0, 3.5, True), steps[1]]
    assert spent(DESCENT, 50) == (300, 4.5)


def test_a_round_reads_the_whole_text():
    assert history(ROUNDS, 50) == [Point(50, 2.0, 8.0, False), Point(100, 3.0, 5.0, False)]
    assert spent(ROUNDS, 50) == (100, 3.0)


def test_a_run_without_a_log_has_no_history():
    assert history([], 50) == []
    assert spent([], 50) == (0, 0.0)
