"""Chat: a conversation with the model, streamed by the server of the live page (serve/endpoints/page_chat.py).

A file has no server that could answer, and says so.
"""

from collections.abc import Sequence
from typing import Any

from chainrule.viewer.subject import Subject
from chainrule.viewer.views import LIVE, Options, View


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    return {"run": subject.name, "path": str(subject.run.path.name), "live": bool(options.get(LIVE)),
            "template": subject.run.chat_template is not None}


VIEW = View(
    "chat", "Chat",
    "A conversation with the model. Enter sends, Shift+Enter begins a new line. What is saved is a line of JSON, from "
    "which --task chat learns.",
    lambda subject: subject.continues_text, _make, reads=False, needs="a language model of plain text",
)
