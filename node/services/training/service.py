"""Training, as a service: the trainer at a workplace, with its learner, its spool and its records."""

from functools import partial
from typing import Self

import trio

from node.metrics.observer import open_observer
from node.services.base import Service
from node.services.training.trainer import Trainer
from node.services.training.values import OwnLook
from node.services.workplace import Workplace
from node.training.client import EvaluatorProcess, TrainerProcess
from node.training.settings import read_settings
from node.training.spool import Spool
from node.weights.publish import Publisher


class Training(Trainer, Service):
    @classmethod
    async def open(cls, place: Workplace) -> Self:
        """Raises TrainingError if the spool is another run's, or for settings that are none or that no validator
        could audit, and ConfigError for sinks that are none."""
        station, config = place.station, place.config
        settings = read_settings(config.trainer)
        settings.check_auditable()
        spool = Spool(place.directory / "spool", settings.milestones)
        await trio.to_thread.run_sync(spool.prepare, station.run.encoded, station.run.assets)
        publisher = Publisher(
            place.member.stock.store,
            station.board,
            station.journal,
            station.run.root,
            station.pool,
            workshop=place.workshop,
            anchor_every=station.run.spec.weights.anchor_every,
            records=place.records,
            shelf=station.shelf,
            epoch=station.time.epoch,
        )
        observing = partial(open_observer, station.run.spec, place.directory, config.metrics_log)
        observer = await trio.to_thread.run_sync(observing)
        learner = TrainerProcess(spool, settings=settings, starter=place.starter)
        evaluator = EvaluatorProcess(spool, station.run.spec, settings, place.starter)
        look = OwnLook(station, place.engine, spool.policy_path, place.scratch)
        return cls(
            station, learner, evaluator, spool, publisher, observer, place.docket, look, place.chairing, place.lessons
        )

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._observer.close()
