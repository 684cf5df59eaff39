"""`chainrule exercise` and `chainrule leaderboard`: copying and checking exercises, and a table of submissions.

Listing and copying need no torch, so what does is imported where it is used.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.exercises import EXERCISES, LESSONS, Exercise, find_exercises, of_lesson
from chainrule.exercises.copying import copy_exercises


def exercise_command(args: Namespace) -> dict[str, Any]:
    if args.name is None:
        return list_exercises(args)
    if args.folder is None:
        raise UserError(f"exercise {args.name}: name a folder too, as in `chainrule exercise {args.name} FOLDER`.")
    return check_command(args) if args.name == "check" else copy_command(args)


def list_exercises(args: Namespace) -> dict[str, Any]:
    if not args.json:
        width = max(map(len, EXERCISES))
        for number, (lesson, title) in enumerate(LESSONS.items(), 1):
            print(f"{lesson}: lesson {number}, {title}")
            for exercise in of_lesson(lesson):
                print(f"  {exercise.name:<{width}}  {exercise.idea}")
        print("\n`chainrule exercise NAME FOLDER` copies an exercise or a lesson, `chainrule exercise check FOLDER` "
              "checks it.")
    return {"exercises": [_plain(exercise) for exercise in EXERCISES.values()]}


def _plain(exercise: Exercise) -> dict[str, str]:
    return {"name": exercise.name, "lesson": exercise.lesson, "idea": exercise.idea}


def copy_command(args: Namespace) -> dict[str, Any]:
    if args.seed is not None:
        raise UserError("--seed belongs to `chainrule exercise check FOLDER`.")
    exercises = find_exercises(args.name)
    files = copy_exercises(exercises, Path(args.folder))
    if not args.json:
        stubs = ", ".join(exercise.stub.name for exercise in exercises)
        print(f"{args.folder}: fill in {stubs}; then `chainrule exercise check {args.folder}`, or pytest there.")
    return {"folder": args.folder, "exercises": [exercise.name for exercise in exercises], "files": files}


def check_command(args: Namespace) -> dict[str, Any]:
    from chainrule.exercises.check import check_folder

    if args.seed is not None and args.seed < 0:
        raise UserError(f"--seed {args.seed}: it must be 0 or more.")
    verdicts = check_folder(Path(args.folder), args.seed)
    passed = sum(verdict.passed for verdict in verdicts)
    if not args.json:
        print("\n\n".join(map(str, verdicts)))
        print(f"\n{passed} of {len(verdicts)} exercises pass.")
    results = [verdict.as_dict() for verdict in verdicts]
    return {"folder": args.folder, "exercises": results, "passed": passed, "failed": len(verdicts) - passed}


def leaderboard_command(args: Namespace) -> dict[str, Any]:
    from chainrule.exercises.leaderboard import Rules, as_markdown, judge_all, write_board

    rules = Rules(Path(args.train), Path(args.hidden), args.minutes)
    out = Path(args.out)
    if out.exists() and not args.overwrite:
        raise UserError(f"{out} exists already. Choose another folder, or replace its table with --overwrite.")
    board = judge_all([Path(one) for one in args.submission], rules)
    write_board(board, out)
    if not args.json:
        print(as_markdown(board))
    return board
