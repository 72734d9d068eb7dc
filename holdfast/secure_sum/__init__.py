"""Secure sums: the moderator learns the total of the members' vectors of whole numbers, and no single one.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), against a moderator
that may lie. Five steps, each one question to each member (member.py) and its answers put together (moderator.py):

    keys      a member's two public keys for this sum, signed by its long-term key, which the others know beforehand
    shares    Shamir shares of its two secrets (the seed of its self-mask, its key for pairwise masks), one of each for
              every other member, sealed for it
    masked    vector + self-mask + masks that each pair of members adds and subtracts, modulo 2^bits
    sign      its signature under the list of those whose masked vectors arrived
    open      once enough members signed the same list: of those on it the shares of the self-mask's seed, of the others
              the shares of the pairwise key; never both of one member

A list needs more than (n + t) / 2 signatures, n being the members that sent keys: two lists would need an honest member
to sign both, so no member's two secrets are ever open together, whoever of t members is in league with the moderator.
X25519, HKDF, ChaCha20, ChaCha20-Poly1305 and Ed25519 are those of `cryptography` (keys.py).
Shares are Shamir's, in the field of 2^130 - 5 (shamir.py).
"""
