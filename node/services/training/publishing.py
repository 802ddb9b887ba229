"""Policies out: each completed step in its order, published where it is this trainer's, compared where another's."""

import trio

from node.services.training.leading import Shared
from node.services.training.stating import metrics_of, word_on
from node.weights.policy_cache import HeldPolicy
from node.weights.publish import Publisher


class PolicyPublisher:
    """Of one learner."""

    def __init__(self, shared: Shared, publisher: Publisher) -> None:
        self._context, self._spool, self._watch, self._publisher = shared.context, shared.spool, shared.watch, publisher
        self._record, self._evaluations, self._timings = shared.record, shared.evaluations, shared.timings
        self._others, self._leading = shared.others, shared.leading
        self._spec, self._policies = self._context.run.spec, self._context.state.policies

    async def run(self, first_batch: int) -> None:
        """Until the last policy, or one that came out otherwise than its leader stated. first_batch: of this start."""
        step = await trio.to_thread.run_sync(self._first)
        while step <= self._spec.recipe.steps:
            made = lambda step=step: self._spool.is_complete(step) or self._spool.was_skipped(step)
            await self._watch.until_there(made)
            if self._spool.was_skipped(step):
                step = self._spool.adopted()
            if self._context.state.distrust:  # a second daemon with this key, or a copied state directory
                equivocation = self._policies.equivocation
                self._record.give_up(
                    f"this trainer is not believed any more: {equivocation.what if equivocation else ''}"
                )
                return
            began = self._context.clock.monotonic()
            held = await self._bring_out(step)
            if self._others.apart is not None:
                return
            if held is not None:
                await self._out(step, held, self._context.clock.monotonic() - began)
                self._tell(step, first_batch)
            step += 1

    def _first(self) -> int:
        """The newest are said again after a restart, since a crash may have come between writing and announcing one of
        them."""
        first = max(0, self._spool.newest_step() - self._spec.recipe.max_staleness)
        # Their images may have made way for later policies, which a term has taken back.
        while self._spool.is_complete(first) and not self._spool.policy_path(first).exists():
            first += 1
        return first

    async def _bring_out(self, step: int) -> HeldPolicy | None:
        """Publish a policy that is this trainer's; compare and hold one that is another's. None where the two are
        apart, and then this trainer follows no further until a term begins before that; and where a later state was
        taken over, of a policy that is not announced any more."""
        own = self._context.key.address
        # Behind the last state that was taken over nothing was, and its metrics need not be read for that.
        taken = step <= self._spool.adopted() and await trio.to_thread.run_sync(self._was_taken, step)
        while taken or step >= self._spool.adopted():
            told, signed = self._watch.next, self._policies.of_step(step)
            if signed is not None and (taken or signed.author != own) and self._leading.chair is not None:
                equal = await self._others.compare(step, signed, taken=taken)
                return await self._publisher.hold(step, self._spool.policy_path(step), signed.raw) if equal else None
            if not taken and (signed is not None or self._leading.leads(step)):
                word = await word_on(self._context, self._spool, step, self._context.membership.terms.of(step).number)
                return await self._publisher.publish(step, self._spool.policy_path(step), word)
            await told.wait()
        return None

    def _was_taken(self, step: int) -> bool:
        return bool(metrics_of(self._spool, step).get("adopted"))

    async def _out(self, step: int, held: HeldPolicy, seconds: float) -> None:
        self._timings.published(step)
        self._context.policy_cache.put(held)
        # Kept as long as a group of it may be trained on, and until the evaluator has scored it.
        keep = await trio.to_thread.run_sync(self._evaluations.waiting)
        self._spool.forget_policies(step - self._spec.recipe.max_staleness - 1, keep=keep)
        await self._record.published(step, seconds)

    def _tell(self, step: int, first_batch: int) -> None:
        """The first policy shows that the learner is ready; the first from a batch of this daemon, that it learns."""
        progress = self._context.progress
        if progress.name == "engine":
            progress.tell("engine", "the learner is ready")
            progress.enter("first-contribution", progress.activity)
        tell = progress.contributed if step > first_batch else progress.tell
        whose = "published" if self._leading.leads(step) else "replayed, equal to the leader"
        tell("policy", f"policy {step} is {whose}")
