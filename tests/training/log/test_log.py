import json

from chainrule.training.log import Log


def test_a_person_reads_the_line_and_a_program_the_facts(capsys):
    log = Log()
    log("round", "round 1: fine", nats_per_token=2.5)
    assert capsys.readouterr().err == "round 1: fine\n"
    assert log.records[0]["event"] == "round"
    assert log.records[0]["nats_per_token"] == 2.5


def test_numbers_that_json_does_not_have_are_null():
    log = Log()
    log("round", nats_per_token=float("nan"), gain=float("inf"))
    assert json.loads(json.dumps(log.records[0], allow_nan=False))["nats_per_token"] is None


def test_the_last_of_an_event_is_found_and_an_earlier_log_goes_on():
    log = Log([{"event": "result", "nats": 3.0}, {"event": "result", "nats": 2.0}])
    assert log.last("result") == {"event": "result", "nats": 2.0}
    log("result", nats=1.0)
    assert log.last("result")["nats"] == 1.0
    assert log.last("nothing of the kind") is None
