"""The output of `chainrule eval` for word vectors: analogies, or pairs of words that people have scored."""

from typing import Any


def print_words(run: str, result: dict[str, Any]) -> None:
    print("\n".join([f"{run}: {line}" for line in _lines(result)] + [result["signature"]]))


def _lines(result: dict[str, Any]) -> list[str]:
    if result["test"] == "similarity":
        return [f"Spearman {_share(result, 'spearman')} over {result['covered']:,} of {result['pairs']:,} pairs"]
    sections = [
        f"{name or 'no section'}: {'–' if part['accuracy'] is None else format(part['accuracy'], '.1%')} "
        f"of {part['covered']:,}, with inputs "
        f"{'–' if part['accuracy_with_inputs'] is None else format(part['accuracy_with_inputs'], '.1%')}"
        for name, part in result["sections"].items()
    ]
    whole = f"accuracy {_share(result, 'accuracy')} over {result['covered']:,} of {result['questions']:,} questions"
    return [*sections, whole, f"accuracy {_share(result, 'accuracy_with_inputs')} where the inputs are answers too"]


def _share(result: dict[str, Any], name: str) -> str:
    if result[name] is None:
        return "unknown (too few words have a vector)"
    low, high = result[f"{name}_interval"]
    return f"{result[name]:.4f} ({low:.4f} to {high:.4f})"
