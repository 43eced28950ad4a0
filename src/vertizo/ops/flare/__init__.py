"""NVIDIA FLARE: runs Vertizo's jobs as FLARE's jobs.

`job.py` makes a FLARE recipe of configurations, `sites.py` is what runs at FLARE's server and
clients, `cells.py` carries asks as messages of FLARE's cells.

`cells.py` uses internals of FLARE and changes with ``VERSION``. What never changes: parties and
their bytes are those of `vertizo.network`; members are who FLARE has authenticated; and a job from
FLARE brings no configuration: each site's own file, outside FLARE's workspace, names all code.
"""

from vertizo.ops.flare.job import recipe

__all__ = ["recipe"]
