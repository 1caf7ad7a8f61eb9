"""Masked aggregation: the server learns the sum of the clients' updates, and no single one. Experimental.

The protocol is that of Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving Machine Learning", Figure 4,
without its signatures), for clients that scale their updates first, by weights that the server computes from their losses.
Nothing in here depends on Flower:

    fixed_point  real numbers as integers modulo 2⁶⁴, so that sums are exact and masks can be uniform
    mask_stream  a seed expanded into a mask
    shamir       a secret split into n shares, any t of which reconstruct it
    keys         X25519 key agreement, and encryption between two clients
    client       a client in one round
    server       the server in one round
    weighting    the weights of a method's models, and the weighted mean from the sum

Flower's own primitives (``flwr.common.secure_aggregation``) are not used: their masks come from a Mersenne twister with a seed of
32 bits, few enough to try them all.
"""

from __future__ import annotations


class ProtocolError(ValueError):
    """A step of the protocol that must not be taken, and why."""


class WeightError(ProtocolError):
    """A client's weight in a sum is larger than it allows."""


class TooFewError(ProtocolError):
    """Fewer clients are left than are needed; nothing has been unmasked."""
