"""What leaves a client, and what that truly promises.

noise (exact, on whole numbers; its tables in exact) -> grid (clip and round) -> mechanisms (mixed digests) and moments
(the moment digest's two stages; what a client makes of them in summary, their way over the wire in wire), each with a
claim; calibration says how much noise an epsilon costs. The moderator's side of the moment digest is sampling. updates
protects a client's updates by DP-SGD, whose steps are in steps. accounting adds up claims, ledger holds the client's
policy and refuses what is too much, house says where both lie. audit, canary and canary_updates attack the claims,
reconstruct tries to see records again, guessing is the published P_crt. subject, findings and planning are what
`holdfast privacy` shows.
"""
