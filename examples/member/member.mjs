// An honest member of a pool in JavaScript, by docs/other-programs.md alone: it bonds a stake, registers, joins, says
// heartbeats, and keeps the newest policy, verified from the leader's signature down to every tensor.
//
//   npm ci --ignore-scripts
//   node member.mjs --rpc URL --swarm 0x.. --pool N --provider-key FILE --node-key FILE [--out DIR] [--once]
//
// Keys are files with 64 hex digits. The provider's account has coin for gas and tokens for the stake, the node's coin.
// What happens is told as one JSON object a line; --once ends after the first policy.

import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { privateKeyFromRaw } from '@libp2p/crypto/keys'
import { gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { noise } from '@libp2p/noise'
import { tcp } from '@libp2p/tcp'
import { yamux } from '@libp2p/yamux'
import { multiaddr } from '@multiformats/multiaddr'
import { secp256k1 } from '@noble/curves/secp256k1.js'
import { createLibp2p } from 'libp2p'
import { Chain, call } from './chain.mjs'
import * as wire from './wire.mjs'

Promise.withResolvers ??= function () { // libp2p uses it, and node has it from 22 on
  const made = {}
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}
const { bytes, checksummed, encode, decode, hex, join, number, same } = wire
const BOARD = '/intellect-node/board/1'
const BLOBS = '/intellect-node/blob/2'
const MOST = 64 << 20 // bytes of an answer or a policy that this example takes
const INTERVAL = 2

const say = (event, told = {}) => console.log(JSON.stringify({ event, ...told }))
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds))

function keyOf (file) {
  const secret = bytes(readFileSync(file, 'utf8').trim())
  return { secret, address: wire.addressOf(secp256k1.getPublicKey(secret)) }
}

const { values: given } = parseArgs({
  options: {
    rpc: { type: 'string' }, swarm: { type: 'string' }, pool: { type: 'string' },
    'provider-key': { type: 'string' }, 'node-key': { type: 'string' },
    listen: { type: 'string', default: '/ip4/127.0.0.1/tcp/0' },
    out: { type: 'string', default: '.' }, once: { type: 'boolean', default: false }
  }
})
const chain = new Chain(given.rpc)
const swarm = bytes(given.swarm)
const pool = Number(given.pool)
const provider = keyOf(given['provider-key'])
const own = keyOf(given['node-key'])
const domain = { chainId: Number(await chain.rpc('eth_chainId')), contract: swarm }

// the chain: who stands behind this node, who leads, who the members are

async function register () {
  const info = await chain.view(swarm, call('nodeInfo(address)', own.address))
  if (number(info[1])) return
  const [token, vault] = await Promise.all(['token()', 'vault()'].map(async (name) =>
    (await chain.view(swarm, call(name)))[0].slice(12)))
  const [base] = await chain.view(swarm, call('baseStake()'))
  const [perUnit] = await chain.view(swarm, call('stakePerUnit()'))
  const stake = number(base) + number(perUnit)
  await chain.send(provider, token, call('approve(address,uint256)', vault, stake))
  await chain.send(provider, vault, call('bond(address,uint256)', provider.address, stake))
  const { timestamp } = await chain.rpc('eth_getBlockByNumber', 'latest', false)
  const deadline = Number(timestamp) + 3600
  const consent = wire.structHash(wire.REGISTRATION, [provider.address, own.address, 1, number(info[2]), deadline])
  const signature = wire.sign(wire.statementDigest(domain, consent), own.secret)
  await chain.send(provider, swarm, call('registerNode(address,uint32,uint256,bytes)', own.address, 1, deadline, signature))
  say('registered', { node: checksummed(own.address), provider: checksummed(provider.address) })
}

/** The run's root, and who leads: the pool's manager, where no trainers are seated (docs/trainer-failover.md). */
async function terms () {
  const told = await chain.view(swarm, call('poolInfo(uint256)', pool))
  const at = Number(number(told[0])) / 32
  return { leader: told[at].slice(12), runRoot: told[at + 6] }
}

async function contacts () {
  const joined = '0x' + hex(wire.keccak(wire.utf8('Joined(uint256,address,address,string,uint64)')))
  const topics = [joined, '0x' + hex(wire.uint(pool))]
  const logs = await chain.rpc('eth_getLogs', { address: checksummed(swarm), topics, fromBlock: '0x0', toBlock: 'latest' })
  const found = new Map()
  for (const log of logs) {
    const data = bytes(log.data)
    const length = Number(number(data.slice(64, 96)))
    found.set(log.topics[2], new TextDecoder().decode(data.slice(96, 96 + length)))
  }
  found.delete('0x' + hex(wire.word(own.address)))
  return [...found.values()].filter(Boolean)
}

// the network

const node = await createLibp2p({
  privateKey: privateKeyFromRaw(own.secret),
  addresses: { listen: [given.listen] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { identify: identify(), gossip: gossipsub({ allowPublishToZeroTopicPeers: true }) }
})
const contact = node.getMultiaddrs()[0].toString()

async function ask (peer, protocol, body) {
  const stream = await node.dialProtocol(peer, protocol, { signal: AbortSignal.timeout(10_000) })
  try {
    stream.send(wire.request(body))
    const parts = []
    let size = 0
    for await (const part of stream) {
      parts.push(part.subarray())
      if ((size += part.length) > MOST) throw new Error('the answer is too long')
    }
    return wire.answer(join(...parts))
  } finally {
    await stream.close()
  }
}

async function heartbeats (step) {
  const boot = Math.floor(Date.now() / 1000) // rises with every start
  for (let count = 0; ; count++) {
    const message = {
      type: 'Heartbeat', boot, count, at: Date.now(), role: 'worker', state: 'working', contact, policy_step: step.now,
      interval: INTERVAL, engine: '', pool
    }
    const topic = wire.topic(domain, pool)
    const { recipients } = await node.services.gossip.publish(topic, wire.seal(domain, own.secret, encode(message)))
    say('heartbeat', { count, step: step.now, to: recipients.length })
    await pause(INTERVAL)
  }
}

// policies

async function fetchBlob (peers, root, most = MOST) {
  for (const peer of peers) {
    const told = await ask(peer, BLOBS, encode({ type: 'info', root })).catch(() => new Uint8Array(1))
    if (told[0] !== 1) continue
    const have = decode(told.slice(1))
    const info = wire.checkInfo(root, decode(have.info))
    if (info.size > most) throw new Error('the blob is too large')
    const data = new Uint8Array(info.size)
    let at = 0
    for (; at < info.pieces.length; at++) {
      const piece = have.data?.length ? have.data.slice(at * info.piece_size, (at + 1) * info.piece_size)
        : await fetchPiece(peer, root, at)
      if (!piece || !same(wire.hash(piece), info.pieces[at])) break // it has not all of it, or lies: the next one
      data.set(piece, at * info.piece_size)
    }
    if (at === info.pieces.length) return data
  }
  throw new Error(`nobody here has blob ${hex(root)}`)
}

async function fetchPiece (peer, root, at) {
  for (;;) {
    const answer = await ask(peer, BLOBS, encode({ type: 'pieces', root, pieces: [at] }))
    if (answer[0] !== 2) return answer[0] === 1 ? answer.slice(1 + 2 + 2 + 4) : null
    await pause(Number(number(answer.slice(1))) / 1000) // it is busy, and says for how long
  }
}

async function newest ({ leader, runRoot }) {
  let found
  for (const peer of node.getPeers()) {
    const envelopes = decode(await ask(peer, BOARD, encode({ known: [], at: 0 })))
    for (const raw of envelopes) {
      try {
        const told = wire.policyOf(domain, pool, leader, raw)
        if (!found || told.statement.step > found.statement.step) found = told
      } catch { /* another kind of message, or not by who leads */ }
    }
  }
  if (!found) return null
  const { statement, manifest_root: root, manifest_size: size } = found
  const encoded = found.manifest.length ? found.manifest : await fetchBlob(node.getPeers(), root, size)
  if (!same(wire.blobRoot(wire.describe(encoded)), root)) throw new Error('the manifest is not the one announced')
  const manifest = decode(encoded)
  if (!same(manifest.policy_root, statement.policy_root) || manifest.step !== statement.step) throw new Error('another policy')
  if (!same(manifest.run_root, runRoot)) throw new Error('it is of another run than the chain names')
  const image = await fetchBlob(node.getPeers(), manifest.image_root)
  wire.checkPolicy(image, manifest)
  return { statement, image }
}

// the member

await register()
await chain.send(own, swarm, call('join(uint256,string)', pool, contact))
say('joined', { pool, contact })
for (const one of await contacts()) {
  await node.dial(multiaddr(one)).then(() => say('connected', { to: one }), (error) => say('silent', { to: one, why: error.message }))
}
node.services.gossip.subscribe(wire.topic(domain, pool))
const step = { now: -1 }
const beating = heartbeats(step)
beating.catch((error) => { say('ended', { why: error.message }); process.exit(1) })
mkdirSync(given.out, { recursive: true })
for (;;) {
  const held = await newest(await terms()).catch((error) => say('trouble', { why: error.message }))
  if (held && held.statement.step > step.now) {
    const path = `${given.out}/policy-${String(held.statement.step).padStart(6, '0')}.safetensors`
    writeFileSync(path + '.partial', held.image)
    renameSync(path + '.partial', path)
    step.now = held.statement.step
    say('policy', { step: step.now, root: hex(held.statement.policy_root), bytes: held.image.length, path })
    if (given.once) break
  }
  await pause(INTERVAL)
}
await pause(2 * INTERVAL) // one more heartbeat tells of the policy
await node.stop()
process.exit(0)
