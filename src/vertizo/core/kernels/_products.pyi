"""The functions of `vertizo.core.kernels.plain_products`."""

from vertizo.core.kernels.plain_products import affine as affine
from vertizo.core.kernels.plain_products import along as along
from vertizo.core.kernels.plain_products import back as back
from vertizo.core.kernels.plain_products import lanes as lanes
from vertizo.core.kernels.plain_products import moved as moved
from vertizo.core.kernels.plain_products import outer as outer
from vertizo.core.kernels.plain_products import raised as raised
