"""What an endpoint's refusal means, whoever made the endpoint: one table for all methods, and how long each one rests.

Pure. A refusal is read by its words first, then by its JSON-RPC code, then by its HTTP status: makers use one number
for different things (-32005 is a quota, a range or a gap; -32015 a revert, or a gateway's timeout). The words are from
public issue threads; `tests/node/chain/test_refusals.py` has each as its maker writes it.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from contracts.bindings import Revert, error_inputs, parse_revert

CALL, ESTIMATE, SEND, LOGS = "eth_call", "eth_estimateGas", "eth_sendRawTransaction", "eth_getLogs"
RECEIPT, TIP = "eth_getTransactionReceipt", "eth_maxPriorityFeePerGas"
CALLS = (CALL, ESTIMATE)
"""The methods that run a contract without a transaction. Only these can be refused by a contract."""
MOST_WORDS = 4_000
"""Characters of a refusal that are read."""
MOST_PARTS = 64
"""Strings of a refusal that are read: a stack trace has hundreds."""


class RefusalKind(StrEnum):
    """What a refusal means."""

    REVERTED = "the contract refused"
    REJECTED = "the chain's rules refuse the transaction"
    FUNDS = "the account has too little of the chain's coin"
    KNOWN = "it has the transaction already"
    NONCE_USED = "the transaction's number is used"
    OCCUPIED = "another transaction with this number waits"
    UNDERPRICED = "the fee is too low"
    RANGE = "too many blocks or logs in one question"
    WRONG = "it does not understand the question"
    QUOTA = "a limit of requests"
    BARRED = "it does not serve this user"
    BROKEN = "it is out of order, or says what nobody knows"
    BEHIND = "it does not have the block yet"
    PRUNED = "it does not have the old state any more"
    UNSUPPORTED = "it does not have the method"


CALLERS = frozenset(
    {
        RefusalKind.REVERTED,
        RefusalKind.REJECTED,
        RefusalKind.FUNDS,
        RefusalKind.KNOWN,
        RefusalKind.NONCE_USED,
        RefusalKind.OCCUPIED,
        RefusalKind.UNDERPRICED,
        RefusalKind.RANGE,
    }
)
"""The asker's business: no other endpoint is asked. All others say something of the endpoint, and the next is asked."""
OF_THE_QUESTION = frozenset({RefusalKind.WRONG, RefusalKind.BEHIND, RefusalKind.PRUNED, RefusalKind.UNSUPPORTED})
"""Where all endpoints refuse so, the asker may have another way to ask."""
MAYBE_HEARD = frozenset({RefusalKind.BROKEN, RefusalKind.WRONG})
"""After such a refusal a transaction may have been taken all the same."""


class EndpointRest(NamedTuple):
    """How long an endpoint is passed over: `least` seconds, twice as long each time in a row, up to `most`. method:
    for the refused method only."""

    least: float
    most: float
    method: bool = False


RESTS: Mapping[RefusalKind, EndpointRest] = {
    RefusalKind.QUOTA: EndpointRest(2.0, 60.0),
    RefusalKind.BARRED: EndpointRest(60.0, 600.0),
    RefusalKind.BROKEN: EndpointRest(1.0, 30.0),
    RefusalKind.BEHIND: EndpointRest(1.0, 10.0, method=True),
    RefusalKind.PRUNED: EndpointRest(10.0, 60.0, method=True),
    RefusalKind.UNSUPPORTED: EndpointRest(600.0, 600.0, method=True),
}


# The table. The first row whose words are found decides; a row without methods holds for all


class RefusalRow(NamedTuple):
    kind: RefusalKind
    words: re.Pattern[str]
    methods: tuple[str, ...] = ()


def _row(kind: RefusalKind, *words: str, methods: tuple[str, ...] = ()) -> RefusalRow:
    return RefusalRow(kind, re.compile("|".join(words)), methods)


TABLE: tuple[RefusalRow, ...] = (
    # A contract may put any words into its reason, so what runs one is looked through for a revert before all else.
    _row(
        RefusalKind.REVERTED,
        r"revert",
        r"\bvm (execution error|exception)",
        r"\b(invalid|bad|undefined) (opcode|instruction|jump)",
        r"\bstack (under|over|limit)",
        r"^(err: |evm: |execution error: )?out ?of ?gas",
        r"always failing transaction",
        r"message execution failed",
        methods=CALLS,
    ),
    # Before "underpriced" and "already": geth says "replacement transaction underpriced" of a number that is taken.
    _row(
        RefusalKind.OCCUPIED,
        r"replacement[ _]?(transaction|fee|not ?allowed)",
        r"transaction replacement",
        r"(could|can) ?not replace",
        r"fee ?too ?low ?to ?compete",
        r"same nonce",
        methods=(SEND,),
    ),
    _row(
        RefusalKind.KNOWN,
        r"already ?(known|imported|exists|submitted|received)",
        r"known ?transaction",
        r"already (in|present in) (the )?(tx|transaction|mem)?[ -]?(pool|system|cache|queue)",
        r"same hash",
        methods=(SEND,),
    ),
    _row(
        RefusalKind.NONCE_USED,
        r"nonce[ _]?(is )?too[ _]?low",
        r"old ?nonce",
        r"nonce (has )?(already )?(been )?used",
        r"nonce.{0,40} (less|lower|smaller) than",
        r"(wrong|invalid|incorrect) (transaction )?nonce",
        methods=(SEND,),
    ),
    _row(RefusalKind.BEHIND, r"nonce[ _]?(is )?too[ _]?high", r"nonce ?gap", r"future nonce", methods=(SEND,)),
    _row(
        RefusalKind.FUNDS,
        r"(insufficient|not enough|enough) ?(eth |native )?(funds|balance)",
        r"exceeds (the )?(account|sender)('s)? ?balance",
        r"funds for gas",
        methods=(SEND, *CALLS),
    ),
    _row(
        RefusalKind.UNDERPRICED,
        r"underpriced",
        r"base ?fee",
        r"(fee|price|tip|cap)( cap| supplied)?( is)? ?too ?low",
        r"(fee|gas ?price|tip|cap).{0,40}(below|less than|lower than|minimum)",
        r"minimum.{0,20}(gas ?price|fee)",
        methods=(SEND, *CALLS),
    ),
    _row(
        RefusalKind.REJECTED,
        r"intrinsic",
        r"(exceeds|over|above) (the )?(block|transaction|tx|maximum)?'?s? ?gas ?limit",
        r"gas ?limit ?(is )?(too|exceed|reached)",
        r"exceeds the configured cap",
        r"exceeds (block|transaction) gas",
        r"gas required exceeds",
        r"gas uint64 overflow",
        r"(invalid|wrong|incorrect) ?(chain ?id|sender|signature|transaction v)",
        r"oversized data",
        r"init ?code",
        r"type not supported",
        r"unsupported transaction type",
        r"sender ?(is ?contract|not an eoa)",
        r"only replay-protected",
        r"failed ?to ?(resolve ?sender|decode)",
        methods=(SEND, *CALLS),
    ),
    # Of logs: an endpoint that lags, and one that counts requests, speak of ranges and logs, too.
    _row(
        RefusalKind.BEHIND,
        r"(beyond|past|above|after|ahead of|greater than|higher than|exceeds?) "
        r"(the )?(current |latest |chain |node's )*(head|tip\b|height|latest|current block|last accepted|best block)",
        r"invalid block ?range( params)?\.?$",
        r"in the future|future block",
        r"blocks? specified.{0,60}cannot be found",
        methods=(LOGS,),
    ),
    _row(
        RefusalKind.QUOTA,
        r"rate[ -]?limit|too many requests|compute units|request (rate|count)|per second|\b429\b|-32016",
        methods=(LOGS,),
    ),
    _row(
        RefusalKind.RANGE,
        r"range.{0,60}(too|exceed|larger|limit|bigger|greater|maximum|max\b|not (allowed|supported))",
        r"range.{0,60}(over\b|wide|less than|at most)",
        r"(exceed|larger|limit|bigger|maximum|max\b|too (large|wide|big|high|many)|over \d|up to|reduce|narrow|smaller)"
        r".{0,60}(range|blocks?\b)",
        r"more than \d[\d,._]* ?k? ?(results|logs|events|blocks|entries)",
        r"(response|result|query|filter|set).{0,20}(size|too (large|big|broad))",
        r"too many (results|logs|events|blocks|matches)",
        r"(max|limit|exceed)\w* .{0,30}\b(results|logs|events)",
        r"\b(results|logs|events)\b.{0,40}(exceed|limit|too many)",
        r"query.{0,20}(timeout|timed out|duration|too long|exceeds)",
        r"blocks? (distance|span|window)",
        r"^limit exceeded\.?$",  # BNB Smart Chain's public endpoints, of a range
        methods=(LOGS,),
    ),
    # A plan that is used up for a month, before a limit of seconds.
    _row(
        RefusalKind.BARRED,
        r"monthly",
        r"billing",
        r"payment required",
        r"suspended|deactivated",
        r"(ran )?out of credits?\b",
    ),
    _row(
        RefusalKind.QUOTA,
        r"rate[ -]?limit",
        r"\brate exceeded|request rate",
        r"too many (concurrent )?(requests?|connections|calls)",
        r"(tier|plan|daily|hourly) limit",
        r"(request|call|credit|cu|rps|usage)s?\b.{0,30}(limit|exceed|quota)",
        r"(limit|exceed|quota)\w*.{0,40}\b(requests?|calls?|credits|rps|capacity)\b",
        r"\bquota",
        r"compute units|throughput|throttl",
        r"per (second|minute|day)\b|/(sec|s|second|min)\b",
        r"slow down",
        r"capacity (exceeded|limit)",
        r"^limit (exceeded|reached)",
        r"\b429\b",
        r"(tx|transaction)? ?(pool|queue) is full|txpool full|too many transactions",
    ),
    _row(
        RefusalKind.PRUNED,
        r"missing trie node",
        r"\bprun(ed|ing)\b",
        r"\barchiv",
        r"historical|state histor",
        r"\bancient\b",
        r"(world )?state.{0,80}(not available|unavailable|not found|missing)",
        r"no state (found|available)",
        r"old (data|block|state)s? (is |are )?not available",
        r"history (is |has been )?(not available|unavailable|expired)",
        r"proof window",
    ),
    _row(
        RefusalKind.UNSUPPORTED,
        r"method.{0,80}(not|n't|unsupported|disabled|blocked|forbidden|unavailable|restricted)\b",
        r"(unsupported|unknown|no such|invalid|disallowed|blocked|forbidden) (rpc )?(method|namespace|module)",
        r"not (yet )?implemented",
        r"not supported",
        r"not (available|allowed|whitelisted|supported) (on|in|for|by) .{0,30}(tier|plan|node|chain|network|endpoint)",
        r"free ?tier|upgrade (your|to a) (plan|paid)",
        # A call without a receiver runs its data as a program, which some do not let pass.
        r"(missing|required|requires?|invalid|no|null|empty) .{0,20}"
        r"(['\"`]?to['\"`]? (address|field|parameter)|recipient)",
        r"contract creation.{0,30}(not|n't|disabled)",
    ),
    _row(
        RefusalKind.BEHIND,
        r"(header|block)s?\b.{0,80}(not|n't) (been )?(found|available|known|exist|ready|yet|canonical)",
        r"block\b.{0,80}(not|n't) been (processed|synced|indexed)",
        r"(unknown|missing|nonexistent|non-existent|invalid|future) (block|header)",
        r"(behind|not (fully )?synced|syncing|still sync|out of sync|not caught up)",
        r"unfinalized|last accepted",
        r"could not find (block|header)|cannot find (block|header)|no (block|header) (found|with)",
        r"block (number )?(is )?out of (range|bounds)",
        r"(beyond|ahead of|greater than|higher than) .{0,20}(head|latest|tip)",
        r"resource not found",
    ),
    _row(
        RefusalKind.BARRED,
        r"unauthori[sz]ed|authenticat|authoriz|\bforbidden\b|\bdenied\b",
        r"not allowed|not permitted|\bbanned\b|\bblacklist",
        r"(api|access|project|app) ?-?(key|id|token)",
        r"(invalid|missing|expired|unknown) (key|token|credential|project|app)",
        r"subscription|(account|app|project|tenant|key) .{0,20}(disabled|inactive|expired|blocked|not found)",
        r"unsupported country|your (ip|country|region)|cloudflare|captcha",
    ),
    _row(
        RefusalKind.BROKEN,
        r"internal|backend|upstream|gateway|timed? ?-?out|timeout|deadline|overload|busy|unavailable|maintenance",
        r"try again|temporar|unhealthy|no (healthy|available|working)|connection (refused|reset)|\beof\b|server error",
    ),
    _row(
        RefusalKind.WRONG,
        r"invalid (argument|param|request|json|address|hex|type|length)|cannot unmarshal|missing value",
        r"parse error|too many arguments|hex string|bad request|invalid input",
    ),
)
CODES: Mapping[int, RefusalKind] = {
    -32004: RefusalKind.UNSUPPORTED,  # EIP-1474
    -32005: RefusalKind.QUOTA,  # EIP-1474: limit exceeded
    -32007: RefusalKind.QUOTA,  # QuickNode, of seconds
    -32012: RefusalKind.QUOTA,  # QuickNode, of credits
    -32016: RefusalKind.QUOTA,  # Base, proxyd
    -32029: RefusalKind.QUOTA,
    -32097: RefusalKind.QUOTA,
    429: RefusalKind.QUOTA,  # Alchemy
    -32001: RefusalKind.BEHIND,  # EIP-1474: resource not found
    -32601: RefusalKind.UNSUPPORTED,
    -32052: RefusalKind.BARRED,  # Ankr
    -32701: RefusalKind.PRUNED,  # PublicNode: old blocks are for those who pay
    -32602: RefusalKind.WRONG,
    -32700: RefusalKind.WRONG,
}
LOGS_CODES: Mapping[int, RefusalKind] = {
    -32614: RefusalKind.RANGE,
    -32600: RefusalKind.RANGE,
    -32602: RefusalKind.RANGE,
}
"""The same for logs: behind these numbers a range stands more often than anything else."""
CALL_CODES: Mapping[int, RefusalKind] = {3: RefusalKind.REVERTED, -32015: RefusalKind.REVERTED}
"""geth's and Parity's numbers for a revert; a gateway's -32015 says "timeout" besides."""
STATUSES: Mapping[int, RefusalKind] = {
    401: RefusalKind.BARRED,
    402: RefusalKind.BARRED,
    403: RefusalKind.BARRED,
    404: RefusalKind.BARRED,
    407: RefusalKind.BARRED,
    410: RefusalKind.BARRED,
    429: RefusalKind.QUOTA,
}


class EndpointRefused(Exception):
    """An endpoint answered with an error. words: its own, without the endpoint's secrets; endpoint: its URL, as it may
    be shown."""

    def __init__(
        self, kind: RefusalKind, method: str, words: str, endpoint: str = "", data: Any = None, code: int = 0
    ) -> None:
        super().__init__(f"{words or kind} ({code})" if code else words or str(kind))
        self.kind = kind
        self.method = method
        self.words = words
        self.endpoint = endpoint
        self.data = data
        self.code = code


def kind_of(method: str, message: str, code: int | None = None, data: Any = None, status: int = 200) -> RefusalKind:
    """What the refusal of `method` means. message, code, data: of the JSON-RPC error; status: of HTTP."""
    if method in CALLS and _ours(message, data) is not None:
        return RefusalKind.REVERTED
    words = " ".join(_words(message, data)).lower()[:MOST_WORDS]
    for row in TABLE:
        if (not row.methods or method in row.methods) and row.words.search(words):
            return row.kind
    if method in CALLS and (code in CALL_CODES or _hex_of(data)):
        return RefusalKind.REVERTED
    if method == LOGS and code is not None and code in LOGS_CODES and status not in STATUSES:
        return LOGS_CODES[code]
    if code is not None and code in CODES:
        return CODES[code]
    return STATUSES.get(status, RefusalKind.BROKEN)


def _words(message: str, data: Any) -> Iterator[str]:
    """The message, and what stands as text in the error's data: gateways put a node's own words there. Bytes in hex
    are no words, and a stack trace is no refusal."""
    yield message
    for _, text in zip(range(MOST_PARTS), _strings(data), strict=False):
        if not text.startswith("0x"):
            yield text


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for name, value in data.items():
            if name != "stack":
                yield from _strings(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _strings(value)


# Why a contract refused, in each maker's form

_HEX = re.compile(r"0x((?:[0-9a-f]{2}){4,})", re.IGNORECASE)
_CUSTOM = re.compile(r"custom error '(\w+)\((.*)\)'", re.DOTALL)
_REASON = re.compile(r"reason string '(.*)'", re.DOTALL)
_PANIC = re.compile(r"panic code (0x[0-9a-f]{1,64})", re.IGNORECASE)


def revert_of(message: str, data: Any) -> Revert:
    """Why a contract refused, whichever client tells it: geth's and anvil's bytes in `data`; Parity's "Reverted 0x..."
    there; Hardhat's and ganache's object around them; or only words, as Hardhat's "custom error 'Name(1, 2)'"."""
    known = _ours(message, data)
    if known is not None:
        return known
    for text in _texts(message, data):
        if (revert := _named(text)) is not None:
            return revert
    return Revert("unknown", {"message": " ".join(_words(message, data)).strip()[:200]})


def _ours(message: str, data: Any) -> Revert | None:
    """By its bytes, wherever they stand: no other four bytes begin an error of our contracts."""
    for text in _texts(message, data):
        for found in _HEX.finditer(text):
            if (revert := parse_revert(bytes.fromhex(found[1]))) is not None:
                return revert
    return None


def _texts(message: str, data: Any) -> list[str]:
    return [*(text for _, text in zip(range(MOST_PARTS), _strings(data), strict=False)), message]


def _named(text: str) -> Revert | None:
    """One that is told in Hardhat's words only."""
    if found := _CUSTOM.search(text):
        inputs = error_inputs(found[1])
        return None if inputs is None else Revert(found[1], _arguments(inputs, found[2]))
    if found := _REASON.search(text):
        return Revert("Error", {"message": found[1][:200]})
    if found := _PANIC.search(text):
        return Revert("Panic", {"code": int(found[1], 16)})
    return None


def _arguments(inputs: tuple[tuple[str, str], ...], text: str) -> dict[str, Any]:
    """Arguments as they stand in words; none of them where one is not of its type."""
    parts = [part.strip().strip('"') for part in text.split(",")] if text.strip() else []
    if len(parts) != len(inputs):
        return {}
    try:
        return {name: int(part, 0) if "int" in abi else part for (name, abi), part in zip(inputs, parts, strict=True)}
    except ValueError:
        return {}


def _hex_of(data: Any) -> bool:
    """Whether the error carries bytes, as a call that a contract refused does."""
    return any(text.startswith("0x") and _HEX.fullmatch(text) for text in _strings(data))


# How long which endpoint rests


class Marks:
    """Which endpoints are passed over now. Pure: `now` in seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}
        self._times: dict[tuple[str, str], int] = {}

    def note(self, url: str, method: str, kind: RefusalKind, now: float) -> None:
        """It refused so."""
        rest = RESTS.get(kind)
        if rest is None:
            return
        place = (url, method if rest.method else "")
        if self._until.get(place, now) > now:
            return  # of several questions that were asked at once
        times = self._times.get(place, 0)
        self._times[place] = times + 1
        self._until[place] = now + min(rest.most, rest.least * 2 ** min(times, 16))

    def answered(self, url: str, method: str) -> None:
        """It is well: what it refused in a row begins anew."""
        for place in ((url, ""), (url, method)):
            self._until.pop(place, None)
            self._times.pop(place, None)

    def rests(self, url: str, method: str, now: float) -> float:
        """Seconds for which it still rests; 0 if it does not."""
        return max(0.0, *(self._until.get(place, now) - now for place in ((url, ""), (url, method))))
