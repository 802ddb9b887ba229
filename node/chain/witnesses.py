"""What two endpoints tell alike: by that it is decided who judges, who leads, and who is paid.

One endpoint of several may lie, lag, go back or forget. So what decides is asked of two that agree: at first, whenever
one tells something else than was agreed on, and again after a while. What stays as it was agreed on costs one question,
as before. Where two tell different things nothing is believed, which is no "no": who asked asks again later. Of three
the odd one is passed over. With one endpoint, or where the others cannot be reached, its word is taken: no liar brings
that about, and it is counted.

Blocking: call it from threads.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from contracts.bindings import ContractError
from node.bounded_dict import BoundedDict
from node.chain.endpoints import Endpoints
from node.chain.errors import EndpointsDisagree, RpcUnreachable, WrongChain
from node.chain.refusals import EndpointRefused, RefusalKind
from node.chain.rpc import EXPECTED

log = structlog.get_logger()
T = TypeVar("T")
Key = Callable[[Any], object]


def itself(answer: object) -> object:
    return answer


class EndpointRecord(msgspec.Struct, frozen=True):
    """What is known of an endpoint. lags: others are asked before it; contradicted: times that two others told
    the same, and it something else; disagreed: times that it and another one told different things, and nobody a third
    time; alone: times that it was believed because no other could be asked."""

    url: str
    in_use: bool = False
    lags: bool = False
    contradicted: int = 0
    disagreed: int = 0
    alone: int = 0


class Witnesses:
    """The endpoints of one connection, as far as they are compared. reconsidered: seconds before two that disagree are
    asked again, for one may be a block behind the other; behind: as in `out_of_time`."""

    def __init__(
        self,
        endpoints: Endpoints,
        clock: Callable[[], float] = time.monotonic,
        *,
        reconsidered: tuple[float, ...] = (1.0, 2.0, 4.0),
        behind: float = 120.0,
    ) -> None:
        self._reconsidered, self._behind = reconsidered, behind
        self._endpoints, self._clock = endpoints, clock
        remembered = 4_096  # answers that two agreed on: of each node's pay, among others
        self._agreed: BoundedDict[Hashable, tuple[object, float]] = BoundedDict(remembered, refresh=True)
        """What was asked -> what two told alike, by its key, and when."""
        self._apart: BoundedDict[str, int] = BoundedDict(remembered)
        """What was asked -> times in a row that two told different things."""
        self._counts: dict[str, Counter[int]] = {name: Counter() for name in ("contradicted", "disagreed", "alone")}

    @property
    def several(self) -> bool:
        """Whether there is another endpoint to ask what one has told."""
        return len(self._endpoints) > 1

    def records(self) -> list[EndpointRecord]:
        endpoints = self._endpoints
        counts = [{name: told[place] for name, told in self._counts.items()} for place in range(len(endpoints))]
        return [
            EndpointRecord(endpoints.shown(place), *endpoints.standing(place), **counts[place])
            for place in range(len(endpoints))
        ]

    def decides(self, about: Hashable, action: str, method: str, view: Callable[[], T], key: Key = itself) -> T:
        """An answer that two agree on by `key`, now or when they were asked last. about: what is asked. Raises
        EndpointsDisagree, and what `view` raises."""
        if not self.several:
            return view()
        known, at = self._agreed.get(about, (None, 0.0))
        # Seconds after which two are asked again also where one tells what they agreed on: it may keep back what is
        # new.
        if known is not None and self._clock() < at + 3600.0:
            try:
                if key(answer := view()) == known:
                    return answer
            except (ContractError, *EXPECTED) as error:
                # One endpoint says that the contract refuses what it told before.
                log.debug("chain.answer_changed", action=action, why=str(error)[:200])
        answer, two = self._ask(action, method, view, key, self._reconsidered)
        if two:
            self._agreed[about] = key(answer), self._clock()
        return answer

    def agreed(self, action: str, method: str, view: Callable[[], T], key: Key = itself, *, patient: bool = True) -> T:
        """What two tell alike now. patient: whether those that disagree are asked again. Raises as `decides`."""
        return self._ask(action, method, view, key, self._reconsidered if patient else ())[0]

    def anybody(self, method: str, view: Callable[[], T | None]) -> T | None:
        """The first answer that is one: what nobody can invent needs no second witness."""
        for place in self._endpoints.each(method):
            if (found := self._told(place, view)) is not None and found.error is None and found.answer is not None:
                return found.answer
        return None

    def each_hears(self, method: str, say: Callable[[], object]) -> None:
        """Say it to every endpoint, whatever it answers."""
        for place in self._endpoints.each(method):
            self._told(place, say)

    def put_laggards_last(self, newest: Callable[[], int], now: float) -> None:
        """Of several endpoints that the others come before which is far behind another one, or tells of a time that has
        not come. newest: the time of an endpoint's newest block; now: this machine's, unix seconds."""
        asked = {place: self._told(place, newest) for place in range(len(self._endpoints))}
        heads = {place: told.answer for place, told in asked.items() if told and told.answer is not None}
        for place in out_of_time(heads, now, behind=self._behind):
            log.warning("chain.endpoint_out_of_time", url=self._endpoints.put_last(place), seconds=heads[place] - now)

    def _ask(
        self, action: str, method: str, view: Callable[[], T], key: Key, pauses: tuple[float, ...]
    ) -> tuple[T, bool]:
        """With whether two told it."""
        if not self.several:
            return view(), False
        for pause in (*pauses, None):
            told = self._once(action, method, view, key)
            if not isinstance(told, list):
                self._apart.pop(action, None)
                return told.get(), True
            if len(told) < 2:
                if not told:
                    return view(), False  # which raises what is amiss
                self._counts["alone"][told[0][0]] += 1
                return told[0][1].get(), False
            if pause is not None:
                time.sleep(pause)
        places, self._apart[action] = [place for place, _ in told], self._apart.get(action, 0) + 1
        # One that is a block behind is no news, where nobody had the patience to ask it again.
        # Times in a row, in which two that nobody asked again disagree, from which on they are counted.
        if pauses or self._apart[action] >= 5:
            self._counts["disagreed"].update(places)
        raise EndpointsDisagree(action, [self._endpoints.shown(place) for place in places])

    def _once(
        self, action: str, method: str, view: Callable[[], T], key: Key
    ) -> "_Told[T] | list[tuple[int, _Told[T]]]":
        """What two tell alike; else what each that answers tells."""
        told: list[tuple[int, _Told[T]]] = []
        for place in self._endpoints.each(method):
            if (one := self._told(place, view)) is None:
                continue
            if any(other.means(key) == one.means(key) for _, other in told):
                for liar in (at for at, other in told if other.means(key) != one.means(key)):
                    self._counts["contradicted"][liar] += 1
                    url = self._endpoints.pass_over(method, liar)
                    log.warning("chain.endpoint_contradicted", url=url, action=action)
                return one
            told.append((place, one))
        return told

    def _told(self, place: int, view: Callable[[], T]) -> "_Told[T] | None":
        """None where it has no opinion: it cannot be reached, or refuses the question."""
        try:
            with self._endpoints.only(place):
                return _Told(view())
        except (RpcUnreachable, WrongChain) as error:
            log.debug("chain.no_second_opinion", why=error.why)
        except (ContractError, *EXPECTED) as error:
            # That the contract refuses is an answer, and so is one without its form.
            if not isinstance(error, EndpointRefused) or error.kind is RefusalKind.REVERTED:
                return _Told(error=error)
            log.debug("chain.no_second_opinion", why=str(error)[:200])
        return None


def is_future(at: int, now: float, *, most: float = 60.0) -> bool:
    """Whether a block is of a time that has not come, by more seconds than clocks differ."""
    return at > now + most


def out_of_time(heads: Mapping[int, int], now: float, *, behind: float = 120.0) -> list[int]:
    """Places of endpoints whose newest block is older than another's by more than `behind` seconds, or in the future
    where not all are: a chain of one's own may have any time. Pure."""
    past = {place: at for place, at in heads.items() if not is_future(at, now)}
    newest = max(past.values(), default=0)
    return [place for place, at in heads.items() if past and (place not in past or at < newest - behind)]


class _Told(Generic[T]):
    """An answer, or why there is none."""

    def __init__(self, answer: T | None = None, error: Exception | None = None) -> None:
        self.answer, self.error = answer, error

    def means(self, key: Key) -> object:
        # Words differ from maker to maker.
        return (
            ("answer", key(self.answer))
            if self.error is None
            else ("no answer", isinstance(self.error, EndpointRefused))
        )

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        return self.answer  # type: ignore[return-value] - None where that was the answer
