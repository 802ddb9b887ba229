// A js-libp2p node as interop.mjs and interop_mesh.mjs have it: TCP, Noise, yamux, a key of our kind.

if (!Promise.withResolvers) { // Node before 22
  Promise.withResolvers = function () {
    let resolve, reject
    const promise = new Promise((yes, no) => { resolve = yes; reject = no })
    return { promise, resolve, reject }
  }
}
const { createLibp2p } = await import('libp2p')
const { noise } = await import('@chainsafe/libp2p-noise')
const { yamux } = await import('@chainsafe/libp2p-yamux')
const { tcp } = await import('@libp2p/tcp')
const { identify } = await import('@libp2p/identify')
const { generateKeyPair } = await import('@libp2p/crypto/keys')

/** listen: addresses; services: besides identify. */
export async function startNode (listen = [], services = {}) {
  const node = await createLibp2p({
    privateKey: await generateKeyPair('secp256k1'),
    addresses: { listen },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: { identify: identify(), ...services }
  })
  await node.start()
  return node
}
