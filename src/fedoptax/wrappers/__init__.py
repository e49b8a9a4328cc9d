"""Functions from algorithm to algorithm.

`with_clipping` changes the gradients that the clients see; `with_personal` leaves parameters at the clients;
`with_privacy` and `with_compression` change what a client sends and what the server makes of the mean. Each keeps
everything else.

Wrappers nest. The outer wrapper of gradients meets the task's gradient first: `with_prox(with_clipping(a, 1.0), 0.1)`
clips the gradient of the proximal objective; `with_clipping(with_prox(a, 0.1), 1.0)` clips the task's gradient, then
adds the proximal term. Gradient and upload wrappers commute; `with_personal` goes outside `with_prox`, privacy outside
`with_personal`, compression outside privacy.
"""

from fedoptax.wrappers.compression import with_compression
from fedoptax.wrappers.gradients import clipped, with_clipping
from fedoptax.wrappers.personal import with_personal
from fedoptax.wrappers.privacy import with_privacy
