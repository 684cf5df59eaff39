"""The modules of pages keep the types that their comments say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OURS = Path(sys.prefix) / "js" / "node_modules" / ".bin" / "tsc"    # where `make test` puts it
TSC = str(OURS) if OURS.exists() else shutil.which("tsc")


@pytest.mark.skipif(TSC is None, reason="there is no TypeScript here: npm install typescript")
def test_every_module_of_a_page_keeps_its_types():
    told = subprocess.run([TSC, "--project", HERE / "tsconfig.json"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout
