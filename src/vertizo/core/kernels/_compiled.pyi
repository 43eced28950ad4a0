"""The functions of `vertizo.core.kernels.plain`."""

from vertizo.core.kernels.plain import add as add
from vertizo.core.kernels.plain import add_normals as add_normals
from vertizo.core.kernels.plain import add_signs as add_signs
from vertizo.core.kernels.plain import ages as ages
from vertizo.core.kernels.plain import apart as apart
from vertizo.core.kernels.plain import bounded as bounded
from vertizo.core.kernels.plain import descend as descend
from vertizo.core.kernels.plain import distinct as distinct
from vertizo.core.kernels.plain import gather as gather
from vertizo.core.kernels.plain import highest as highest
from vertizo.core.kernels.plain import normal_squares as normal_squares
from vertizo.core.kernels.plain import normals as normals
from vertizo.core.kernels.plain import right as right
from vertizo.core.kernels.plain import scatter as scatter
from vertizo.core.kernels.plain import signs as signs
from vertizo.core.kernels.plain import slopes as slopes
from vertizo.core.kernels.plain import softmax as softmax
from vertizo.core.kernels.plain import squares as squares
from vertizo.core.kernels.plain import stamp as stamp
from vertizo.core.kernels.plain import start as start
