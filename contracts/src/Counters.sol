// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What of a pool is read and written most, in one word; zero for a pool that does not exist.
///
/// | bits    | field        |                                                     |
/// |---------|--------------|-----------------------------------------------------|
/// | 0-55    | free         | funded units that no table has promised             |
/// | 56-111  | owed         | units that a table has promised and nobody was paid |
/// | 112-143 | startedAt    | seconds; never zero                                 |
/// | 144-167 | epochSeconds |                                                     |
/// | 168-191 | window       | seconds                                             |
/// | 192-215 | leaseSeconds |                                                     |
/// | 216-247 | maxUnits     | per epoch and unit of a node                        |
/// | 248-255 | flags        |                                                     |
///
/// free + owed changes only by `fund`, which keeps it below 2^56, and by `pay`, `emptied`, which lower it: so neither
/// field can overflow into the next by moving units between them.
type Counters is uint256;

using {
    free,
    owed,
    startedAt,
    epochSeconds,
    window,
    leaseSeconds,
    maxUnits,
    has,
    with,
    without,
    fund,
    owe,
    forgive,
    pay,
    emptied
} for Counters global;

uint8 constant PAUSED = 1;
uint8 constant ENDED = 2;
uint8 constant JOINED = 4;
uint8 constant INVITED = 8;
uint8 constant ATTESTED = 16;
uint8 constant SWEPT = 32;
uint256 constant MAX_ESCROW_UNITS = type(uint56).max;

error EscrowTooLarge(uint256 units);

function newCounters(uint32 start, uint256 epoch, uint256 window_, uint256 lease, uint32 units, uint8 flags)
    pure
    returns (Counters)
{
    uint256 times = (uint256(start) << 112) | (epoch << 144) | (window_ << 168) | (lease << 192);
    return Counters.wrap(times | (uint256(units) << 216) | (uint256(flags) << 248));
}

function free(Counters c) pure returns (uint256) {
    return uint56(Counters.unwrap(c));
}

function owed(Counters c) pure returns (uint256) {
    return uint56(Counters.unwrap(c) >> 56);
}

function startedAt(Counters c) pure returns (uint256) {
    return uint32(Counters.unwrap(c) >> 112);
}

function epochSeconds(Counters c) pure returns (uint256) {
    return uint24(Counters.unwrap(c) >> 144);
}

function window(Counters c) pure returns (uint256) {
    return uint24(Counters.unwrap(c) >> 168);
}

function leaseSeconds(Counters c) pure returns (uint256) {
    return uint24(Counters.unwrap(c) >> 192);
}

function maxUnits(Counters c) pure returns (uint256) {
    return uint32(Counters.unwrap(c) >> 216);
}

/// Whether any of these flags is set.
function has(Counters c, uint8 flags) pure returns (bool) {
    return Counters.unwrap(c) & (uint256(flags) << 248) != 0;
}

function with(Counters c, uint8 flags) pure returns (Counters) {
    return Counters.wrap(Counters.unwrap(c) | (uint256(flags) << 248));
}

function without(Counters c, uint8 flags) pure returns (Counters) {
    return Counters.wrap(Counters.unwrap(c) & ~(uint256(flags) << 248));
}

/// New money: to `free`.
function fund(Counters c, uint256 units) pure returns (Counters) {
    if (units > MAX_ESCROW_UNITS - c.free() - c.owed()) revert EscrowTooLarge(units);
    return Counters.wrap(Counters.unwrap(c) + units);
}

/// From `free` to `owed`; the caller has seen that there are so many.
function owe(Counters c, uint256 units) pure returns (Counters) {
    return Counters.wrap(Counters.unwrap(c) - units + (units << 56));
}

/// From `owed` back to `free`.
function forgive(Counters c, uint256 units) pure returns (Counters) {
    assert(units <= c.owed());
    return Counters.wrap(Counters.unwrap(c) + units - (units << 56));
}

/// Out of `owed`, to who earned it.
function pay(Counters c, uint256 units) pure returns (Counters) {
    assert(units <= c.owed());
    return Counters.wrap(Counters.unwrap(c) - (units << 56));
}

/// Without anything free.
function emptied(Counters c) pure returns (Counters) {
    return Counters.wrap(Counters.unwrap(c) - c.free());
}
