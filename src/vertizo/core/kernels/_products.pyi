"""The functions of `vertizo.kernels.plain_products`."""

from vertizo.kernels.plain_products import affine as affine
from vertizo.kernels.plain_products import along as along
from vertizo.kernels.plain_products import back as back
from vertizo.kernels.plain_products import lanes as lanes
from vertizo.kernels.plain_products import moved as moved
from vertizo.kernels.plain_products import outer as outer
from vertizo.kernels.plain_products import raised as raised
