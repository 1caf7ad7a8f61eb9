"""Masked aggregation: the server learns the sum of the clients' updates, and no single one. Experimental.

The protocol is that of Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving Machine Learning", Figure 4,
without its signatures), for clients that scale their updates beforehand by weights the server has worked out from their losses.
Nothing in here knows of Flower:

    ring       real numbers as whole numbers modulo 2⁶⁴, so that adding up is exact and masks can be uniform
    stream     a seed drawn out into a mask
    shamir     a secret in n shares, any t of which give it back
    keys       X25519 agreement, and letters only one peer can open
    party      a client in one round        adder      the server in one round
    weighting  the weights of a method's models, and the mean that comes of the sum

Flower's own primitives (``flwr.common.secure_aggregation``) are not used: their masks come from a Mersenne twister whose seed is
folded to 32 bits, few enough to be tried one after the other.
"""

from __future__ import annotations


class ProtocolError(ValueError):
    """A step of the protocol that must not be taken, and why."""


class TooFewError(ProtocolError):
    """Fewer clients are left than are needed; nothing has been unmasked."""
