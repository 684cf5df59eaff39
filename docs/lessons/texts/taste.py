"""A judge for the lesson on preferences: an answer is better the more cheerful it is."""

CHEERFUL = {"smiled", "clapped", "stayed"}


def cheerful(prompts: list[str], answers: list[str]) -> list[float]:
    """1 for an answer in which people had a good time, 0 for any other."""
    return [float(bool(CHEERFUL & set(answer.split()))) for answer in answers]
