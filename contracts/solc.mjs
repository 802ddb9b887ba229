#!/usr/bin/env node
// The face of a native solc over npm's `solc`, for forge and slither: `--version`, and `--standard-json` from stdin to
// stdout. Other arguments (`--allow-paths`) are accepted and mean nothing: imports come with the request, or from here.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const solc = createRequire(import.meta.url)("solc");

function readImport(path) {
  for (const file of [resolve(path), join(here, path), join(here, "node_modules", path)]) {
    try {
      return { contents: readFileSync(file, "utf8") };
    } catch {
      continue;
    }
  }
  return { error: `${path} was not found` };
}

if (process.argv.includes("--version")) {
  console.log(`solc, the solidity compiler commandline interface\nVersion: ${solc.version()}`);
} else {
  process.stdout.write(solc.compile(readFileSync(0, "utf8"), { import: readImport }));
}
