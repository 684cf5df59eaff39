import pytest
import torch
from training import topics


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder of data, which `topics.pretrained` adds runs to."""
    folder = tmp_path_factory.mktemp("topics")
    topics.write_data(folder)
    return folder


@pytest.fixture
def desk(data, monkeypatch):
    """The same, where more may be made of it; on one thread, so that sums are the same."""
    monkeypatch.setenv("CHAINRULE_CACHE", str(data / ".cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield data
    torch.set_num_threads(threads)
