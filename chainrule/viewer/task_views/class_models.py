"""The class models of a generative classifier: views of language models show one of them, or all side by side."""

from collections.abc import Mapping
from typing import Any

from chainrule.errors import UserError
from chainrule.tasks.classify import Labelled, class_probabilities
from chainrule.text.tables import Place
from chainrule.viewer.subject import Subject

PLACE = Place("text", 1)


def predict_class(subject: Subject, text: str) -> int:
    """The number of the most probable class; 0 if the text is impossible in every class."""
    run = subject.run
    example = Labelled((" ".join(text.split()),), None, PLACE)
    encoded = subject.task.encode([example], run.recipe, run.tokenizer, run.labels)  # type: ignore[attr-defined]
    return int(class_probabilities(subject.model, encoded)[0].argmax())


def choose_class(subject: Subject, text: str, options: Mapping[str, str]) -> tuple[Subject, dict[str, Any]]:
    """The language model of the class that is asked for, or of the most probable one, and the choice for the page."""
    parts = subject.of_classes
    if parts == [subject]:
        return subject, {}
    names, wanted = list(subject.run.labels), options.get("class")
    if wanted is not None and wanted not in names:
        raise UserError(f"class={wanted} is not a class of {subject.name}; it has {', '.join(names)}.")
    place = predict_class(subject, text) if wanted is None else names.index(wanted)
    return parts[place], {"input": {"classes": names, "class": names[place]}}
