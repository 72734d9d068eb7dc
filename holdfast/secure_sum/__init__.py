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
Who opens a list takes part in no other of the same purpose, and a list is opened by more than (n - t) / 2 honest
members, hence by two at least: no combination of totals is one member's numbers.

A moderator in league with t members may say that honest ones dropped out, so the noise is made for those that are left
on the shortest list, less t. All members sign for what they were told (the model, the centres): a moderator that tells
one member another model than the rest (Pasquini et al. 2022), so that the total is that member's alone, gets none.
X25519, HKDF, ChaCha20, ChaCha20-Poly1305 and Ed25519 are those of `cryptography` (keys.py).
Shares are Shamir's, in the field of 2^130 - 5 (shamir.py).
"""
