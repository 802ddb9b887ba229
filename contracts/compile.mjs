// Standard-JSON in on stdin, a line a request; standard-JSON out on stdout, a line each. Imports come from src/ and
// node_modules/.
// The `solcjs` command is not used because it prints a line of its own before the JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const solc = createRequire(import.meta.url)("solc");

function readImport(path) {
  const file = path.startsWith("src/") ? join(here, path) : join(here, "node_modules", path);
  try {
    return { contents: readFileSync(file, "utf8") };
  } catch (error) {
    return { error: String(error) };
  }
}

for await (const request of createInterface({ input: process.stdin })) {
  const output = solc.compile(request, { import: readImport });
  process.stdout.write(`${JSON.stringify({ version: solc.version(), output: JSON.parse(output) })}\n`);
}
