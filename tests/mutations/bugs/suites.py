"""Test files, and the models they are run on, that bugs of several folders are caught by."""

CHATS = "tests/tasks/test_chat_task.py"
GPT = "gpt layers=2 width=16 heads=2 context=16"
LAWS = "tests/contract/test_laws.py"
LOG_LINEAR = "tests/models/test_loglinear.py"
ONE_RANK = "tests/training/distributed/test_one_rank.py"
TUNED = "tests/training/finetune/test_finetune.py"
