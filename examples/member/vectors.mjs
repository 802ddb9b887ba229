// node vectors.mjs FILE: whether this program understands and makes what docs/vectors.json holds. One line a part.

import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { secp256k1 } from '@noble/curves/secp256k1.js'
import * as wire from './wire.mjs'

const { bytes, hex } = wire

export function check (told) {
  const parts = {}
  const equal = (part, found, expected) => {
    const shown = found instanceof Uint8Array ? hex(found) : found
    if (shown !== expected) throw new Error(`${part}: ${shown} is not ${expected}`)
    parts[part] = (parts[part] ?? 0) + 1
  }
  const secrets = new Map()
  for (const key of told.keys) {
    const address = wire.checksummed(wire.addressOf(secp256k1.getPublicKey(bytes(key.secret))))
    equal('keys', address, key.address)
    secrets.set(address, bytes(key.secret))
  }
  const domain = { chainId: told.domain.chain_id, contract: bytes(told.domain.contract) }
  equal('domain', wire.DOMAIN, told.domain.type)
  equal('domain', wire.separator(domain), told.domain.separator)

  const statement = ({ type, fields, struct_hash: hash, digest, signature, signer }) => {
    equal('statements', wire.structHash(type, valuesOf(type, fields)), hash)
    equal('statements', wire.statementDigest(domain, bytes(hash)), digest)
    equal('statements', wire.sign(bytes(digest), secrets.get(signer)), signature)
    equal('statements', wire.checksummed(wire.signerOf(bytes(digest), bytes(signature))), signer)
  }
  // Verdicts name a work by the hash of its commitment, which stands in their own hash alone.
  const plain = told.statements.filter(({ type }) => !/^(Verdict|Rechecked)/.test(type))
  for (const one of [...plain, told.policy_statement.commitment]) statement(one)
  const said = Object.fromEntries(Object.entries(told.policy_statement.fields).map(([name, value]) =>
    [name, typeof value === 'string' ? bytes(value) : value]))
  equal('statements', wire.statementHash(said), told.policy_statement.struct_hash)

  equal('topic', wire.topic(domain, told.pool), told.topic)
  for (const { author, raw, message } of told.envelopes) {
    const opened = wire.open(domain, bytes(raw))
    equal('envelopes', opened.message.type, message.type)
    if (!opened.author) continue
    equal('envelopes', wire.checksummed(opened.author), author)
    equal('envelopes', wire.seal(domain, secrets.get(author), opened.payload), raw)
  }
  for (const { raw, why } of told.refused) {
    let taken = true
    try {
      const { author, message } = wire.open(domain, bytes(raw))
      const known = Object.keys(message).every((name) => name in told.envelopes[0].message)
      taken = known && wire.checksummed(author) === told.envelopes[0].author && message.pool === told.pool
    } catch { taken = false }
    equal('refused', taken ? why : 'refused', 'refused')
  }
  for (const { request, answer } of told.requests) {
    equal('requests', wire.request(bytes(request).slice(4)), request)
    wire.answer(bytes(answer))
  }
  policy(told.policy, equal)
  const row = JSON.parse(told.gateway.body).policies[0]
  const announced = wire.policyOf(domain, told.pool, bytes(told.envelopes[1].author), bytes(row.announcement))
  equal('gateway', announced.statement.policy_root, told.policy.policy_root)
  return parts
}

function valuesOf (type, fields) {
  return type.slice(type.indexOf('(') + 1, -1).split(',').map((member) => {
    const name = member.split(' ')[1].replace(/[A-Z]/g, (c) => '_' + c.toLowerCase())
    return typeof fields[name] === 'string' ? bytes(fields[name]) : fields[name]
  })
}

function policy (told, equal) {
  const manifest = wire.decode(bytes(told.manifest))
  const header = wire.imageHeader(manifest.tensors)
  const image = new Uint8Array(told.image_size)
  image.set(header)
  const view = new DataView(image.buffer, header.length)
  const rows = 2 * 65536
  for (let i = 0; i < rows; i++) view.setUint16(2 * i, i % 65521, true)
  for (let i = 0; i < 5; i++) view.setUint16(2 * (rows + i), i, true)
  wire.checkPolicy(image, manifest)
  const blob = wire.describe(image)
  blob.pieces.forEach((piece, at) => equal('policy', piece, told.pieces[at]))
  equal('policy', wire.blobRoot(blob), told.image_root)
  equal('policy', wire.policyRoot(told.step, manifest.tensors), told.policy_root)
  equal('policy', wire.blobRoot(wire.describe(bytes(told.manifest))), told.manifest_root)
  image[header.length] ^= 1
  try { wire.checkPolicy(image, manifest) } catch { return }
  throw new Error('an image with another bit was taken')
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  for (const [part, count] of Object.entries(check(JSON.parse(readFileSync(process.argv[2]))))) console.log(part, count)
}
