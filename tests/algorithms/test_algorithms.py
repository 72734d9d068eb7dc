"""Each algorithm against numbers derived by hand from its paper, through the real round and the real client loop.

Everywhere m_0 = 8, m_1 = -16, the model starts at 0, client 0 has one sample (one step) and client 1 has three (three
steps), unless a test says otherwise. If a step halves the distance to a point p, then k steps from w move a client by

    delta = (p - w) (1 - 2^-k)        that is 1/2 of the way for k = 1, 3/4 for k = 2, 7/8 for k = 3.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from algorithms_bench import Bench, plain

from holdfast.algorithms import AdaBest, FedAvg, FedDyn, FedNova, FedProx, Scaffold
from holdfast.trust import Uniform

TARGETS = [8.0, -16.0]


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-5, abs=1e-6)


def test_fedavg() -> None:
    # lr 1/2 on (w - m)^2 / 2: a step is w - (w - m)/2, so p = m.  a = (1/4, 3/4) by samples.
    # Round 1, w = 0:     deltas 8/2 = 4 and -16 * 7/8 = -14;             w = 4/4 - 14 * 3/4 = -9.5
    # Round 2, w = -9.5:  deltas 17.5/2 = 8.75 and -6.5 * 7/8 = -5.6875;  w = -9.5 + 2.1875 - 4.265625
    bench = Bench(FedAvg(), TARGETS, [1, 3], plain(0.5))
    assert bench.play() == -9.5
    assert bench.weights == {0: 0.25, 1: 0.75}
    assert bench.play() == -11.578125
    assert bench.state.algorithm == {}
    assert bench.state.accepted == {0: 1, 1: 1}


def test_fedprox() -> None:
    # mu = 1, lr 1/4: a step is w - (w - m + w - w_t)/4 = w/2 + (m + w_t)/4, so p = (m + w_t)/2, p - w_t = (m - w_t)/2.
    # Round 1, w = 0:      deltas 4 * 1/2 = 2 and -8 * 7/8 = -7;                    w = 2/4 - 7 * 3/4 = -4.75
    # Round 2, w = -4.75:  deltas 6.375/2 = 3.1875 and -5.625 * 7/8 = -4.921875;    w = -4.75 + 0.796875 - 3.69140625
    bench = Bench(FedProx(mu=1.0), TARGETS, [1, 3], plain(0.25))
    assert bench.play() == -4.75
    assert bench.play() == -7.64453125
    assert bench.state.algorithm == {}


def test_fednova() -> None:
    # Deltas as in FedAvg; tau = 1/4 * 1 + 3/4 * 3 = 2.5.
    # Round 1, w = 0:      w = 2.5 (1/4 * 4/1 - 3/4 * 14/3) = 2.5 (1 - 3.5) = -6.25
    # Round 2, w = -6.25:  deltas 14.25/2 = 7.125 and -9.75 * 7/8 = -8.53125;
    #                      w = -6.25 + 2.5 (7.125/4 - 8.53125/4) = -6.25 - 2.5 * 0.3515625
    bench = Bench(FedNova(), TARGETS, [1, 3], plain(0.5))
    assert bench.play() == near(-6.25)
    assert bench.play() == near(-7.12890625)
    assert sum(bench.weights.values()) == 1.0


def test_fednova_keeps_the_fixed_point_that_fedavg_loses() -> None:
    # With tiny steps, FedAvg is drawn to the client that takes more of them; FedNova stays at sum p_i m_i.
    # Client 0 takes one step, client 1 three, and both count alike: p = (1/2, 1/2), the minimum is at -4.
    # To first order in lr a client moves k lr (m - w): FedAvg rests where (8 - w) + 3 (-16 - w) = 0, at w = -10.
    bench = Bench(FedNova(), TARGETS, [1, 3], plain(2.0**-12))
    bench.method = replace(bench.method, trust=Uniform())
    bench.state = bench.state.next(model={"w": bench.state.model["w"] - 4.0})
    # At -4, FedAvg would move by lr (12 - 3 * 12)/2 = -0.003; of FedNova's move only terms of lr^2 are left.
    assert bench.play() == pytest.approx(-4.0, abs=2e-5)


def test_fednova_with_momentum() -> None:
    # rho = 0.9, lr 1/2. From distance e = w - m one step moves -0.5 e; three: v = e, 1.4 e, 1.06 e, so -1.73 e.
    # ||a||_1 = 1 for one step; (1 + 0.9 + 0.81) + (1 + 0.9) + 1 = 5.61 for three.  tau = 0.25 + 0.75 * 5.61 = 4.4575.
    # Round 1, w = 0:            deltas 4 and -1.73 * 16 = -27.68
    #                            w = 4.4575 (1/4 * 4 - 3/4 * 27.68 / 5.61) = 4.4575 * -2.70053476 = -12.03763369
    # Round 2, w = -12.03763369: deltas 20.03763369/2 = 10.01881684 and -1.73 * 3.96236631 = -6.85489372
    #                            w += 4.4575 (2.50470421 - 0.91642964) = 7.07973375
    bench = Bench(FedNova(), TARGETS, [1, 3], plain(0.5, momentum=0.9))
    assert bench.play() == near(-12.03763369)
    assert bench.play() == near(-4.95789994)


def test_feddyn() -> None:
    # alpha = 3, lr 1/8: a step is w - (w - m - g + 3 (w - w_t))/8 = w/2 + (m + g + 3 w_t)/8,
    # so p = (m + g + 3 w_t)/4 and p - w_t = (m + g - w_t)/4.  a = (1/2, 1/2).
    # Round 1, w = 0:     deltas 2 * 1/2 = 1 and -4 * 7/8 = -3.5, mean -1.25
    #                     g = (-3, 10.5);  h = 0 + 3 * 1.25 = 3.75;  w = -1.25 - 3.75/3 = -2.5
    # Round 2, w = -2.5:  deltas (8 - 3 + 2.5)/8 = 0.9375 and (-16 + 10.5 + 2.5)/4 * 7/8 = -0.65625, mean 0.140625
    #                     g = (-5.8125, 12.46875);  h = 3.75 - 0.421875 = 3.328125;  w = -2.359375 - 1.109375
    # Round 3, client 0 away, w = -3.46875:  delta (-16 + 12.46875 + 3.46875)/4 * 7/8 = -0.013671875
    #                     g_1 = 12.46875 + 0.041015625;  h = 3.328125 + 3 * 1/2 * 0.013671875 = 3.3486328125
    #                     w = -3.46875 - 0.013671875 - 1.1162109375 = -4.5986328125
    bench = Bench(FedDyn(alpha=3.0), TARGETS, [1, 3], plain(0.125), away=((0, 3, 4),))
    assert bench.play() == near(-2.5)
    assert (bench.memory(0), bench.memory(1), bench.server) == (near(-3.0), near(10.5), near(3.75))
    assert bench.weights == {0: 0.5, 1: 0.5}
    assert bench.play() == near(-3.46875)
    assert (bench.memory(0), bench.memory(1), bench.server) == (near(-5.8125), near(12.46875), near(3.328125))
    assert bench.play() == near(-4.5986328125)
    assert (bench.memory(0), bench.memory(1), bench.server) == (near(-5.8125), near(12.509765625), near(3.3486328125))
    assert bench.state.accepted == {0: 1, 1: 2}


def test_feddyn_clients_remember_their_gradients() -> None:
    # With the local problem solved, g_i is grad L_i(w_i) = w_i - m_i; and when the w_i agree, sum g_i = 0: the optimum.
    # 20 steps that each halve the distance solve it to a millionth.
    bench = Bench(FedDyn(alpha=3.0), TARGETS, [20, 20], plain(0.125), rounds=30)
    for _ in range(30):
        bench.play()
    assert bench.w == pytest.approx(-4.0, abs=2e-3)  # the mean of 8 and -16
    assert bench.memory(0) == pytest.approx(-12.0, abs=5e-3)
    assert bench.memory(1) == pytest.approx(12.0, abs=5e-3)


def test_adabest() -> None:
    # mu = beta = 1/2, lr 1/2: a step is w - (w - m - h)/2, so p = m + h.  a = (1/2, 1/2).
    # Round 1, w = 0:     deltas 4 and -14, m_1 = -5;  h = (-2, 7);  w = -5 - (0 + 5)/2 = -7.5
    # Round 2, client 0 away, w = -7.5:  delta (-16 + 7 + 7.5) * 7/8 = -1.3125;  m_2 = -8.8125
    #                     h_1 = 7/1 + 0.65625 = 7.65625;  w = -8.8125 - (-5 + 8.8125)/2 = -10.71875
    # Round 3, w = -10.71875:  deltas (8 - 2 + 10.71875)/2 = 8.359375 and (-16 + 7.65625 + 10.71875) * 7/8 = 2.078125
    #                     m_3 = -10.71875 + 5.21875 = -5.5;  w = -5.5 - (-8.8125 + 5.5)/2 = -3.84375
    #                     h_0 = -2/2 (two rounds ago) - 4.1796875;  h_1 = 7.65625/1 - 1.0390625
    bench = Bench(AdaBest(mu=0.5, beta=0.5), TARGETS, [1, 3], plain(0.5), away=((0, 2, 3),))
    assert bench.play() == -7.5
    assert (bench.memory(0), bench.memory(1), bench.server) == (-2.0, 7.0, -5.0)
    assert bench.play() == -10.71875
    assert (bench.memory(0), bench.memory(1), bench.server) == (-2.0, 7.65625, -8.8125)
    assert bench.play() == -3.84375
    assert (bench.memory(0), bench.memory(1), bench.server) == (-5.1796875, 6.6171875, -5.5)


def test_scaffold() -> None:
    # lr 1/2: a step is w - (w - m + c - c_i)/2, so p = m - c + c_i.  Client 1 has two samples; a = (1/2, 1/2).
    # Round 1, w = 0:   deltas 4 and -16 * 3/4 = -12;  c_0 = -4/(1/2 * 1) = -8, c_1 = 12/(1/2 * 2) = 12
    #                   c = (-8 + 12)/2 = 2;  w = -4
    # Round 2, w = -4:  p = 8 - 2 - 8 = -2 and -16 - 2 + 12 = -6;  deltas 2/2 = 1 and -2 * 3/4 = -1.5
    #                   c_0 = -8 - 2 - 1/(1/2) = -12, c_1 = 12 - 2 + 1.5 = 11.5;  c = 2 + (-4 - 0.5)/2 = -0.25
    #                   w = -4 - 0.25
    # Round 3, client 1 away, w = -4.25:  p = 8 + 0.25 - 12 = -3.75, delta 0.25
    #                   c_0 = -12 + 0.25 - 0.5 = -12.25;  c = -0.25 + 1/2 * -0.25 = -0.375;  w = -4
    bench = Bench(Scaffold(), TARGETS, [1, 2], plain(0.5), away=((1, 3, 4),))
    assert bench.play() == -4.0
    assert (bench.memory(0), bench.memory(1), bench.server) == (-8.0, 12.0, 2.0)
    assert bench.weights == {0: 0.5, 1: 0.5}
    assert bench.play() == -4.25
    assert (bench.memory(0), bench.memory(1), bench.server) == (-12.0, 11.5, -0.25)
    assert bench.play() == -4.0
    assert (bench.memory(0), bench.memory(1), bench.server) == (-12.25, 11.5, -0.375)


def test_scaffold_with_momentum() -> None:
    # rho = 0.9, lr 1/2, one step and three: deltas -0.5 e and -1.73 e with e = w - p; reach 1 and 5.61.
    # Round 1, w = 0:       deltas 4 and -27.68;  c_0 = -4/0.5 = -8, c_1 = 27.68/2.805 = 9.86809269
    #                       which is the mean of client 1's gradients 16, 8, -3.2 with weights 2.71, 1.9, 1.
    #                       c = 0.93404635;  w = -11.84
    # Round 2, w = -11.84:  p_0 = 8 - c - 8 = -0.93404635, e = -10.90595365, delta 5.45297683
    #                       p_1 = -16 - c + 9.86809269 = -7.06595365, e = -4.77404635, delta 8.25910018
    #                       c_0 = -8 - c - 10.90595365 = -19.84 (its one gradient: w - 8)
    #                       c_1 = 9.86809269 - c - 8.25910018/2.805 = 5.98963980
    #                       c = (-19.84 + 5.98963980)/2;  w = -11.84 + 6.85603850
    bench = Bench(Scaffold(), TARGETS, [1, 3], plain(0.5, momentum=0.9))
    assert bench.play() == near(-11.84)
    assert (bench.memory(0), bench.memory(1), bench.server) == (near(-8.0), near(9.86809269), near(0.93404635))
    assert bench.memory(1) == near((2.71 * 16 + 1.9 * 8 - 3.2) / 5.61)
    assert bench.play() == near(-4.98396150)
    assert (bench.memory(0), bench.memory(1), bench.server) == (near(-19.84), near(5.98963980), near(-6.92518010))


def test_scaffold_rests_at_the_optimum_whatever_the_steps() -> None:
    # c_i = grad L_i(w*) and c = 0 at w* = -4: then p - w = m - c + c_i - w = 0, nobody moves.
    bench = Bench(Scaffold(), TARGETS, [1, 3], plain(0.125), rounds=90)
    for _ in range(90):
        bench.play()
    assert bench.w == pytest.approx(-4.0, abs=1e-3)
    assert bench.server == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("algorithm", [AdaBest(mu=0.0, beta=0.0), FedDyn(alpha=1e-6), FedProx(mu=0.0)], ids=repr)
def test_without_its_own_term_an_algorithm_is_fedavg_in_its_first_round(algorithm: FedAvg) -> None:
    bench = Bench(algorithm, TARGETS, [1, 1], plain(0.5))
    plain_bench = Bench(FedAvg(), TARGETS, [1, 1], plain(0.5))
    first = plain_bench.play()
    # FedDyn's server adds -h/alpha = the mean delta once more, whatever alpha: it looks twice as far.
    assert bench.play() == near(2 * first if isinstance(algorithm, FedDyn) else first)
