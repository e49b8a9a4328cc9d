"""PyTorch clients (extra `torch`): any `nn.Module` under any algorithm, and the local rules as optimizers.

`with_module` trains a module with any algorithm, `with_loop` with any training loop; `module_task` makes of a module a
task for everything else in this package, `causal_lm_task` of a language model. `fedoptax.torch.app` has the Flower
apps. Messages and uploads are those of JAX clients, so that both kinds can take part in one federation.
"""

from importlib.util import find_spec

from fedoptax.errors import UsageError

if find_spec("torch") is None:
    raise UsageError("PyTorch is not installed (pip install 'fedoptax[torch]')")

from fedoptax.torch.gradients import (
    ModuleState,
    buffers_from_module,
    load_buffers,
    load_params,
    params_from_module,
    torch_grad_fn,
    with_module,
)
from fedoptax.torch.language import causal_lm_task, save_adapter
from fedoptax.torch.loop import with_loop
from fedoptax.torch.optim import FAFED, STEM, FedLAMB, LocalAMSGrad
from fedoptax.torch.task import module_task
