// A js-libp2p node with gossipsub as it comes, driven by lines of JSON; see interop_mesh.py.
//
//   {"do": "dial", "contact": ".."}   {"do": "join", "topic": ".."}   {"do": "say", "topic": "..", "text": ".."}
//   {"do": "tell"}                    -> {"heard": [..], "mesh": n, "lowest_score": n}
//
// What its program prints first is its own contact.

import { createInterface } from 'node:readline'
import { startNode } from './interop_node.mjs'

const { gossipsub } = await import('@libp2p/gossipsub')
const { multiaddr } = await import('@multiformats/multiaddr')

const noMesh = { D: 0, Dlo: 0, Dhi: 0, Dout: 0, Dscore: 0 }
const gossip = gossipsub(process.argv[2] === 'no-mesh' ? noMesh : {})
const node = await startNode(['/ip4/127.0.0.1/tcp/0'], { pubsub: gossip })
const { pubsub } = node.services
const heard = []
let topic = ''
let lowest = 0
pubsub.addEventListener('message', event => heard.push(Buffer.from(event.detail.data).toString()))
setInterval(() => {
  for (const peer of pubsub.getPeers()) lowest = Math.min(lowest, pubsub.score.score(peer.toString()))
}, 100)

const commands = {
  dial: ({ contact }) => node.dial(multiaddr(contact)),
  join: command => { topic = command.topic; pubsub.subscribe(topic) },
  say: ({ text }) => pubsub.publish(topic, Buffer.from(text)),
  tell: () => say({ heard, mesh: pubsub.getMeshPeers(topic).length, lowest_score: lowest })
}
const say = what => console.log(JSON.stringify(what))
say({ contact: node.getMultiaddrs()[0].toString() })
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  try {
    await commands[command.do](command)
  } catch (error) {
    console.error(command.do, String(error))
  }
}
await node.stop()
process.exit(0)
