"""What leaves a client, and what that truly promises.

noise (exact, on whole numbers; its tables in exact) -> grid (clip and round) -> mechanisms (mixed digests) and moments
(the moment digest), each with a claim; calibration says how much noise an epsilon costs. The moderator's side of the
moment digest is sampling. accounting adds up claims, ledger holds the client's policy and refuses what is too much,
audit attacks the claims, guessing is the published P_crt.
"""
