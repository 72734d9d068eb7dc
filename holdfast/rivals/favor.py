"""FAVOR: a double DQN learns whom to ask, over many federations played from the start (Wang et al., INFOCOM 2020).

    s_t  the models of the moderator and of all N clients, each by the first principal components of the clients' first
    r_t  = 64^(accuracy_t - target) - 1                        below 0 until the target, which ends an episode
    y_t  = r_t + gamma Q'(s_{t+1}, argmax_a Q(s_{t+1}, a))     Q' a copy of Q, brought up to date from time to time
    Q    learns (y_t - Q(s_t, a_t))^2, a_t one client; once it has learnt, the K clients of the largest Q are asked

Rule from a translated note on the paper; the code that the authors published (iQua/flsim) has no DQN. Sizes of the
network and of its memory, and how it explores, are ours. The moderator needs every client's model, and samples of its
own to be rewarded by. It is no selection that an experiment names: what it costs is in benchmarks/favor.py.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BASE = 64.0  # of the reward


def reward(accuracy: float, target: float) -> float:
    """What a round is worth.

    >>> reward(0.5, 1.0), reward(0.8, 0.8)
    (-0.875, 0.0)
    """
    return float(BASE ** (accuracy - target) - 1)


@dataclass(frozen=True)
class Components:
    """The directions in which the clients' first models differ most.

    >>> models = torch.tensor([[0.0, 1.0], [4.0, 1.0], [2.0, 1.0]])
    >>> Components.of(models, 1).of_models(models).abs().flatten()
    tensor([2., 2., 0.])
    """

    mean: Tensor
    directions: Tensor  # (p, d)

    @classmethod
    def of(cls, models: Tensor, count: int) -> Components:
        """Of models (n, d); there are at most n - 1 directions that differ."""
        mean = models.mean(0)
        return cls(mean, torch.linalg.svd(models - mean, full_matrices=False).Vh[:count])

    def of_models(self, models: Tensor) -> Tensor:
        return (models - self.mean) @ self.directions.T


def targets(rewards: Tensor, over: Tensor, following: Tensor, judged: Tensor, gamma: float) -> Tensor:
    """y of each step: Q says which action is best next, its older copy what that is worth.

    Q would take the second action, which its copy values at 5, not the first, which that values at 9: 1 + 0.5 x 5.

    >>> q, copied = torch.tensor([[1.0, 2.0]]), torch.tensor([[9.0, 5.0]])
    >>> targets(torch.tensor([1.0]), torch.tensor([False]), q, copied, 0.5)
    tensor([3.5000])
    >>> targets(torch.tensor([1.0]), torch.tensor([True]), q, copied, 0.5)
    tensor([1.])
    """
    worth = judged.gather(1, following.argmax(1, keepdim=True)).squeeze(1)
    return rewards + gamma * torch.where(over, 0.0, worth)


class Agent:
    """The network, its older copy and what it remembers of rounds played."""

    def __init__(self, width: int, clients: int, gamma: float = 0.9, hidden: int = 64, seed: int = 0) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.q = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, clients))
        self.older = copy.deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-3)
        self.memory: deque[tuple[Tensor, int, float, Tensor, bool]] = deque(maxlen=2000)
        self.gamma, self.clients = gamma, clients
        self.chance = torch.Generator().manual_seed(seed)
        self.steps = 0

    def ask(self, state: Tensor, explore: float) -> int:
        """One client: the best that is known, or by chance any."""
        if float(torch.rand((), generator=self.chance)) < explore:
            return int(torch.randint(self.clients, (), generator=self.chance))
        return self.best(state, 1)[0]

    @torch.no_grad()
    def best(self, state: Tensor, count: int) -> list[int]:
        """The clients of the largest Q."""
        found: list[int] = self.q(state).topk(count).indices.tolist()
        return sorted(found)

    def remember(self, before: Tensor, asked: int, worth: float, after: Tensor, over: bool) -> None:
        self.memory.append((before, asked, worth, after, over))

    def learn(self, batch: int = 32, renew: int = 50) -> float:
        """One step on rounds drawn from memory; the older copy is renewed every `renew` steps. Answers: the loss."""
        places = torch.randint(len(self.memory), (batch,), generator=self.chance).tolist()
        before, asked, worth, after, over = zip(*(self.memory[place] for place in places), strict=True)
        following = torch.stack(after)
        with torch.no_grad():
            wanted = targets(
                torch.tensor(worth), torch.tensor(over), self.q(following), self.older(following), self.gamma
            )
        said = self.q(torch.stack(before)).gather(1, torch.tensor(asked)[:, None]).squeeze(1)
        loss = nn.functional.mse_loss(said, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps % renew == 0:
            self.older = copy.deepcopy(self.q)
        return float(loss.detach())


def state_of(components: Components, moderator: Tensor, clients: Sequence[Tensor]) -> Tensor:
    """The moderator's model and each client's last one, reduced and in one row; as large as first models differ."""
    return components.of_models(torch.stack([moderator, *clients])).flatten()
