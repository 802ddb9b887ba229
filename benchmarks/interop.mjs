// A js-libp2p node that dials ours and asks it on many streams; one line of JSON for each answer. See interop.py.

import { startNode } from './interop_node.mjs'

const { multiaddr } = await import('@multiformats/multiaddr')

const FRAME = 65536
const node = await startNode()
const connection = await node.dial(multiaddr(process.argv[2]))

async function send (stream, data) {
  if (!stream.send(data)) await new Promise(resolve => stream.addEventListener('drain', resolve, { once: true }))
}

/** halfClosed: we say that nothing more comes before the answer does. */
async function echo (size, halfClosed) {
  const stream = await connection.newStream('/echo/1')
  const body = new Uint8Array(size).map((_, place) => place * 7)
  const parts = []
  const ended = new Promise(resolve => {
    stream.addEventListener('message', event => { parts.push(Buffer.from(event.data.subarray())) })
    stream.addEventListener('remoteCloseWrite', resolve)
    stream.addEventListener('close', resolve)
  })
  const head = Buffer.alloc(4)
  head.writeUInt32BE(size)
  await send(stream, head)
  for (let start = 0; start < size; start += FRAME) await send(stream, body.subarray(start, Math.min(start + FRAME, size)))
  if (halfClosed) await stream.close()
  await ended
  const answer = Buffer.concat(parts)
  const same = answer[0] === 0 && answer.readUInt32BE(1) === size && answer.subarray(5).equals(Buffer.from(body))
  console.log(JSON.stringify({ bytes: size, half_closed: halfClosed, same }))
}

await echo(5, false)
await echo(5, true)
await echo(1 << 20, false)
await echo(6 << 20, true)
await Promise.all([echo(300000, false), echo(300001, false), echo(300002, true)])
await node.stop()
process.exit(0)
