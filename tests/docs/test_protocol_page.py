import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "inside" / "protocol.md"


def test_every_line_of_the_page_on_the_protocol_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["branches"]["belief"].shape == (3, 4)
    assert names["belief"].shape == (2, 3, 4)
    assert names["state_bytes"](names["state"]) == 2 * 4 * 8
