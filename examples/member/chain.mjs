// The little of Ethereum that a member needs: calls, logs, and EIP-155 transactions by its own keys.

import { bytes, checksummed, hex, join, keccak, number, sign, utf8, word } from './wire.mjs'

const PAD = (data) => join(data, new Uint8Array((32 - data.length % 32) % 32))
const least = (value) => value === 0n ? new Uint8Array() : bytes(even(value.toString(16)))
const even = (digits) => digits.length % 2 ? '0' + digits : digits

/** ABI: 'bond(address,uint256)' and its values; what is `bytes` or `string` goes behind the others. */
export function call (signature, ...values) {
  const kinds = signature.slice(signature.indexOf('(') + 1, -1).split(',').filter(Boolean)
  const tail = []
  let at = 32 * kinds.length
  const head = values.map((value, i) => {
    if (!['bytes', 'string'].includes(kinds[i])) return word(value)
    const data = typeof value === 'string' ? utf8(value) : value
    const where = word(at)
    tail.push(word(data.length), PAD(data))
    at += 32 + PAD(data).length
    return where
  })
  return join(keccak(utf8(signature)).slice(0, 4), ...head, ...tail)
}

function rlp (item) {
  if (Array.isArray(item)) return lengthened(0xc0, join(...item.map(rlp)))
  return item.length === 1 && item[0] < 0x80 ? item : lengthened(0x80, item)
}

function lengthened (offset, data) {
  if (data.length < 56) return join(Uint8Array.of(offset + data.length), data)
  const length = least(BigInt(data.length))
  return join(Uint8Array.of(offset + 55 + length.length), length, data)
}

export class Chain {
  constructor (url) { this.url = url }

  async rpc (method, ...params) {
    const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params })
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(this.url, { method: 'POST', headers, body, signal: AbortSignal.timeout(20_000) })
    const { result, error } = await answer.json()
    if (error) throw new Error(`${method}: ${error.message}`)
    return result
  }

  /** The words of a view's answer, 32 bytes each. */
  async view (to, data) {
    const told = bytes(await this.rpc('eth_call', { to: checksummed(to), data: '0x' + hex(data) }, 'latest'))
    return Array.from({ length: told.length / 32 }, (_, i) => told.slice(32 * i, 32 * i + 32))
  }

  /** Sign, send, and wait until it is in a block. key: {secret, address} */
  async send (key, to, data) {
    const from = checksummed(key.address)
    const tell = { from, to: checksummed(to), data: '0x' + hex(data) }
    const [count, price, gas, id] = await Promise.all([
      this.rpc('eth_getTransactionCount', from, 'pending'), this.rpc('eth_gasPrice'),
      this.rpc('eth_estimateGas', tell), this.rpc('eth_chainId')
    ])
    const fields = [BigInt(count), BigInt(price) * 2n, BigInt(gas) * 5n / 4n].map(least)
    const rest = [to, new Uint8Array(), data]
    const signature = sign(keccak(rlp([...fields, ...rest, least(BigInt(id)), new Uint8Array(), new Uint8Array()])), key.secret)
    const v = least(BigInt(signature[64] - 27 + 35) + BigInt(id) * 2n)
    const [r, s] = [signature.slice(0, 32), signature.slice(32, 64)].map((half) => least(number(half)))
    const hash = await this.rpc('eth_sendRawTransaction', '0x' + hex(rlp([...fields, ...rest, v, r, s])))
    for (;;) {
      const receipt = await this.rpc('eth_getTransactionReceipt', hash)
      if (receipt) {
        if (receipt.status !== '0x1') throw new Error(`transaction ${hash} was reverted`)
        return receipt
      }
      await new Promise((resolve) => setTimeout(resolve, 200))
    }
  }
}
