// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What of a pool is read most, in one word; zero for a pool that does not exist.
///
/// | bits    | field        |                              |
/// |---------|--------------|------------------------------|
/// | 112-143 | startedAt    | seconds; never zero          |
/// | 144-167 | epochSeconds |                              |
/// | 168-191 | window       | seconds                      |
/// | 192-215 | leaseSeconds |                              |
/// | 216-247 | maxUnits     | per epoch and unit of a node |
/// | 248-255 | flags        |                              |
///
/// Epoch e begins at startedAt + e * epochSeconds and matures `window` seconds after its end.
type Counters is uint256;

using {
    startedAt,
    epochSeconds,
    window,
    leaseSeconds,
    maxUnits,
    has,
    with,
    without,
    epochAt,
    beginning,
    maturity
} for Counters global;

uint8 constant PAUSED = 1;
uint8 constant ENDED = 2;
uint8 constant JOINED = 4;
uint8 constant INVITED = 8;
uint8 constant ATTESTED = 16;

function newCounters(uint32 start, uint256 epoch, uint256 window_, uint256 lease, uint32 units, uint8 flags)
    pure
    returns (Counters)
{
    uint256 times = (uint256(start) << 112) | (epoch << 144) | (window_ << 168) | (lease << 192);
    return Counters.wrap(times | (uint256(units) << 216) | (uint256(flags) << 248));
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

/// The epoch that a second is in; the pool had begun by then.
function epochAt(Counters c, uint256 timestamp) pure returns (uint64) {
    return uint64((timestamp - c.startedAt()) / c.epochSeconds());
}

function beginning(Counters c, uint256 epoch) pure returns (uint256) {
    return c.startedAt() + epoch * c.epochSeconds();
}

/// From when on a table may have an epoch.
function maturity(Counters c, uint64 epoch) pure returns (uint256) {
    return c.beginning(uint256(epoch) + 1) + c.window();
}
