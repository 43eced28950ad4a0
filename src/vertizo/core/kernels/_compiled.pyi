"""The functions of `vertizo.kernels.plain`."""

from vertizo.kernels.plain import add as add
from vertizo.kernels.plain import add_normals as add_normals
from vertizo.kernels.plain import add_signs as add_signs
from vertizo.kernels.plain import ages as ages
from vertizo.kernels.plain import apart as apart
from vertizo.kernels.plain import bounded as bounded
from vertizo.kernels.plain import descend as descend
from vertizo.kernels.plain import distinct as distinct
from vertizo.kernels.plain import gather as gather
from vertizo.kernels.plain import highest as highest
from vertizo.kernels.plain import normal_squares as normal_squares
from vertizo.kernels.plain import normals as normals
from vertizo.kernels.plain import right as right
from vertizo.kernels.plain import scatter as scatter
from vertizo.kernels.plain import signs as signs
from vertizo.kernels.plain import slopes as slopes
from vertizo.kernels.plain import softmax as softmax
from vertizo.kernels.plain import squares as squares
from vertizo.kernels.plain import stamp as stamp
from vertizo.kernels.plain import start as start
