import pytest
import torch
from training import topics


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """A folder of data, and in it a pretrained run of each body, by its kind."""
    folder = tmp_path_factory.mktemp("topics")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHAINRULE_CACHE", str(folder / ".cache"))
        topics.write_data(folder)
        for kind, steps in (("gpt", 150), ("gru", 150), ("encoder", 5), ("transformer", 5)):
            topics.pretrain(folder, kind, steps)
    return folder


@pytest.fixture
def desk(pretrained, monkeypatch):
    """The same, where more may be made of it; on one thread, so that sums are the same."""
    monkeypatch.setenv("CHAINRULE_CACHE", str(pretrained / ".cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield pretrained
    torch.set_num_threads(threads)
