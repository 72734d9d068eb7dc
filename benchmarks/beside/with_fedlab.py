"""FedLab's standalone pipeline: one process, one client after the other."""

from __future__ import annotations

import torch
from shared import BATCH, CLIENTS, LR, MOMENTUM, TURNS, OwnNet, Turns, images, without

without("torchvision", "pynvml")

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Data:
    def __init__(self) -> None:
        self._sets = [torch.utils.data.TensorDataset(*images(client)) for client in range(CLIENTS)]

    def get_dataloader(self, client: int, batch: int) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(self._sets[client], batch, shuffle=True)


class Pipeline(StandalonePipeline):
    def evaluate(self) -> None:
        if self.handler.round < TURNS:
            turns.wait()
        else:
            turns.tell()


turns = Turns()
model = OwnNet()
trainer = SGDSerialClientTrainer(model, CLIENTS)
trainer.setup_dataset(Data())
trainer.setup_optim(1, BATCH, LR)
trainer.optimizer = torch.optim.SGD(trainer._model.parameters(), LR, momentum=MOMENTUM)
turns.wait()
Pipeline(SyncServerHandler(model, TURNS, 1.0), trainer).main()
