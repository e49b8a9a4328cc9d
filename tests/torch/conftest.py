"""Without PyTorch only the test of its absence is collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_torch_[!m]*", "test_torch_mod*"]
