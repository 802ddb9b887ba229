// What members say to each other, byte by byte: EIP-712 statements, envelopes, requests, blobs, policies. Pure.
// docs/other-programs.md says the same in words; docs/vectors.json holds examples.

import { decode, encode } from '@msgpack/msgpack'
import { secp256k1 } from '@noble/curves/secp256k1.js'
import { blake3 as hash } from '@noble/hashes/blake3.js'
import { keccak_256 as keccak } from '@noble/hashes/sha3.js'
import { bytesToHex as hex, concatBytes as join, hexToBytes, utf8ToBytes as utf8 } from '@noble/hashes/utils.js'

export { decode, encode, hash, hex, join, keccak, utf8 }
export const bytes = (text) => hexToBytes(text.replace(/^0x/, ''))
export const same = (one, other) => hex(one) === hex(other)
const derived = (context, data) => hash(data, { context: utf8(context) })

// numbers: big-endian in statements and requests, little-endian in roots
export function uint (value, size = 32) {
  return bytes(BigInt(value).toString(16).padStart(2 * size, '0'))
}
const little = (value, size) => uint(value, size).reverse()
export const number = (data) => BigInt('0x' + (hex(data) || '0'))

// keys: one secret, an address and a peer id

export function addressOf (publicKey) {
  return keccak(secp256k1.Point.fromBytes(publicKey).toBytes(false).slice(1)).slice(12)
}

export function checksummed (address) {
  const plain = hex(address)
  const digest = hex(keccak(utf8(plain)))
  return '0x' + [...plain].map((c, at) => (parseInt(digest[at], 16) >= 8 ? c.toUpperCase() : c)).join('')
}

export function sign (digest, secret) {
  const made = secp256k1.sign(digest, secret, { prehash: false, format: 'recovered' })
  return join(made.slice(1), Uint8Array.of(27 + made[0])) // r | s | v, s in the lower half
}

export function signerOf (digest, signature) {
  if (signature.length !== 65 || ![27, 28].includes(signature[64])) throw new Error('not 65 bytes ending in 27 or 28')
  const recovered = join(Uint8Array.of(signature[64] - 27), signature.slice(0, 64))
  const parsed = secp256k1.Signature.fromBytes(recovered, 'recovered')
  if (parsed.hasHighS()) throw new Error('s is in the upper half')
  return addressOf(parsed.recoverPublicKey(digest).toBytes())
}

// statements: EIP-712

export const DOMAIN = 'EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)'
export const COMMITMENT = 'WorkCommitment(uint256 pool,address node,bytes32 policyRoot,uint64 index,bytes32 fileRoot,' +
  'uint32 units,uint64 epoch)'
export const REGISTRATION = 'NodeRegistration(address provider,address node,uint32 units,uint256 nonce,uint256 deadline)'
export const POLICY = 'PolicyStatement(uint256 pool,uint32 term,uint64 step,uint64 epoch,bytes32 parent,' +
  'bytes32 policyRoot,bytes32 batchRoot,bytes32 stateRoot)'

export const word = (value) => value instanceof Uint8Array ? join(new Uint8Array(32 - value.length), value) : uint(value)

export function structHash (type, values) {
  return keccak(join(keccak(utf8(type)), ...values.map(word)))
}

export function separator ({ chainId, contract }) {
  const named = [keccak(utf8('intellect-node')), keccak(utf8('1'))]
  return structHash(DOMAIN, [...named, chainId, contract])
}

export function statementDigest (domain, struct) {
  return keccak(join(bytes('1901'), separator(domain), struct))
}

// envelopes: [payload, signature], in MessagePack's shortest form

export const topic = ({ chainId, contract }, pool) => `/intellect-node/${chainId}/0x${hex(contract)}/${pool}/1`

function messageDigest (domain, payload) {
  return derived('intellect-node message v1', join(separator(domain), payload))
}

export function seal (domain, secret, payload) {
  return encode([payload, sign(messageDigest(domain, payload), secret)])
}

export function open (domain, raw) {
  const [payload, signature] = decode(raw)
  if (!same(encode([payload, signature]), raw)) throw new Error('the envelope is not in the shortest form')
  // A judgement has an empty one: its own signature, over its verdict, binds all that it says.
  const author = signature.length ? signerOf(messageDigest(domain, payload), signature) : null
  return { author, message: decode(payload), payload }
}

// the trainer's announcement: an envelope by the leader, around a statement that the leader signed as a commitment

export function statementHash (said) {
  const roots = [said.parent, said.policy_root, said.batch_root, said.state_root]
  return structHash(POLICY, [said.pool, said.term, said.step, said.epoch, ...roots])
}

export function policyOf (domain, pool, leader, raw) {
  const { author, message } = open(domain, raw)
  if (message.type !== 'PolicyAnnounced' || message.pool !== pool || message.statement.pool !== pool) {
    throw new Error('it is no announcement for this pool')
  }
  const said = message.statement
  const slot = keccak(join(utf8('intellect-node policy statement v1'), uint(said.term, 4)))
  const commitment = structHash(COMMITMENT, [pool, leader, slot, said.step, statementHash(said), 0, 0])
  const signer = signerOf(statementDigest(domain, commitment), message.signature)
  if (!author || !same(author, leader) || !same(signer, leader)) throw new Error('it is not by who leads')
  return message
}

// requests: u32 length | body, answered by u8 status | u32 length | body

export const request = (body) => join(uint(body.length, 4), body)

export function answer (data) {
  if (data.length < 5 || data.length !== 5 + Number(number(data.slice(1, 5)))) throw new Error('the answer was cut')
  if (data[0] !== 0) throw new Error(`refused with status ${data[0]}`)
  return data.slice(5)
}

// blobs

export function blobRoot (info) {
  const head = join(little(info.size, 8), little(info.piece_size, 4))
  return derived('intellect-node blob v1', join(head, ...info.pieces))
}

export function checkInfo (root, info) {
  const count = Math.ceil(info.size / info.piece_size)
  if (info.pieces.length !== count || !same(blobRoot(info), root)) throw new Error('the list of pieces is another blob')
  return info
}

export function describe (data, pieceSize = 256 * 1024) {
  while (Math.ceil(data.length / pieceSize) > 65536) pieceSize *= 2
  const pieces = []
  for (let at = 0; at < data.length; at += pieceSize) pieces.push(hash(data.slice(at, at + pieceSize)))
  return { size: data.length, piece_size: pieceSize, pieces }
}

// policies: a canonical safetensors image, its tensors' digests, and the root that names step and weights

export function imageHeader (tensors) {
  const header = { __metadata__: { format: 'pt' } }
  let at = 0
  for (const { name, shape } of tensors) {
    const end = at + 2 * shape.reduce((product, one) => product * one, 1)
    header[name] = { dtype: 'BF16', shape, data_offsets: [at, end] }
    at = end
  }
  // As Python's json.dumps writes it: what is not ASCII as \uXXXX.
  const text = JSON.stringify(header).replace(/[\u007f-\uffff]/g, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'))
  const padded = utf8(text + ' '.repeat((8 - text.length % 8) % 8))
  return join(little(padded.length, 8), padded)
}

export function policyRoot (step, tensors) {
  const parts = tensors.map(({ name, shape, digest }) => {
    const label = utf8(name)
    return join(little(label.length, 4), label, Uint8Array.of(shape.length), ...shape.map((n) => little(n, 8)), digest)
  })
  const weights = derived('intellect-node weights v2', join(...parts))
  return derived('intellect-node policy v3', join(little(step, 8), weights))
}

function tensorDigest (image, start, end, pieceSize) {
  const stretches = []
  while (start < end) {
    const upto = Math.min(end, (Math.floor(start / pieceSize) + 1) * pieceSize)
    stretches.push(hash(image.slice(start, upto)))
    start = upto
  }
  return derived('intellect-node tensor v1', join(...stretches))
}

export function checkPolicy (image, manifest) {
  const header = imageHeader(manifest.tensors)
  if (!same(image.slice(0, header.length), header)) throw new Error('the image is not in canonical form')
  const { piece_size: pieceSize } = describe(image)
  let at = header.length
  for (const { name, shape, digest } of manifest.tensors) {
    const end = at + 2 * shape.reduce((product, one) => product * one, 1)
    if (!same(tensorDigest(image, at, end, pieceSize), digest)) throw new Error(`${name} is not what the manifest says`)
    at = end
  }
  if (at !== image.length) throw new Error('the image is longer than its tensors')
  if (!same(policyRoot(manifest.step, manifest.tensors), manifest.policy_root)) throw new Error('another policy')
}
