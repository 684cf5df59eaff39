"""A Wikipedia dump as prose: a few articles by hand, cut off as enwik8 is."""

import json
import subprocess
import sys

import pytest
from programs import benchmark, program

wiki_text = benchmark("wiki_text")

BODY = "Ice is water that is frozen. " * 20
DUMP = f"""<page><title>Ice</title><text xml:space="preserve">{{{{Infobox|a={{{{b}}}}}}}}
'''Ice''' is [[water|frozen water]] &amp;amp; [[cold]].
{BODY}
== See also ==
* [[Snow]]
[[Category:Water]]
[[de:Eis]]</text></page>
<page><title>Frost</title><text xml:space="preserve">#REDIRECT [[Ice]]</text></page>
<page><title>Talk:Ice</title><text xml:space="preserve">{BODY}</text></page>
<page><title>Stub</title><text xml:space="preserve">Short.</text></page>
<page><title>Cut</title><text xml:space="preserve">{BODY}"""


def test_articles_are_those_with_prose_of_their_own():
    (title, text), = wiki_text.articles(DUMP)
    assert title == "Ice"
    assert text.startswith("Ice is frozen water & cold.\nIce is water that is frozen.")
    assert not [word for word in ("See also", "Eis", "Category", "Infobox") if word in text]


@pytest.mark.parametrize(("markup", "wanted"), [
    ("a [[b|c]] d [[e]]", "a c d e"),
    ("[[Image:x.png|thumb|A [[cat]] here]]after", "after"),
    ("{{one|{{two}}}}x", "x"),
    ("{| class=t\n|-\n| cell\n|}\nafter the table", "after the table"),
    ("see [http://x.org the page] and [http://y.org]", "see the page and"),
    ("a<ref>b</ref>c<ref name=d/>e<!-- f\n -->g", "a c e g"),
    ("''slanted'' '''bold''' it's", "slanted bold it's"),
    ("== History ==\nIt began.\n=== Links ===\n* one\n* two", "History\n\nIt began."),
])
def test_markup_goes_and_words_stay(markup, wanted):
    assert wiki_text.prose(markup) == wanted


def test_a_dump_that_is_not_there_is_one_line(tmp_path):
    command = [sys.executable, program("wiki_text"), tmp_path / "absent", "--out", tmp_path / "wiki.jsonl"]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 2
    assert told.stderr.splitlines()[-1].endswith("absent; a dump is wanted, as enwik8 or enwik8.xz.")
    assert not (tmp_path / "wiki.jsonl").exists()


def test_the_program_writes_json_lines(tmp_path):
    (tmp_path / "dump").write_text(DUMP)
    command = [sys.executable, program("wiki_text"), tmp_path / "dump", "--out", tmp_path / "wiki.jsonl"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = (tmp_path / "wiki.jsonl").read_text().splitlines()
    assert json.loads(line)["text"].startswith("Ice\n\nIce is frozen water")
    assert told.startswith("1 articles, ")
