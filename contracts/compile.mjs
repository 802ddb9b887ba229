// Standard-JSON in on stdin, a line a request; standard-JSON out on stdout, a line each. A request brings all of its
// sources, those of others too: what is not in it is not found.
// The `solcjs` command is not used because it prints a line of its own before the JSON.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const solc = createRequire(import.meta.url)("solc");

for await (const request of createInterface({ input: process.stdin })) {
  const output = solc.compile(request);
  process.stdout.write(`${JSON.stringify({ version: solc.version(), output: JSON.parse(output) })}\n`);
}
