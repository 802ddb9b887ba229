#!/usr/bin/env node
// The face of a native solc over npm's `solc`, for forge and slither: `--version`, and `--standard-json` from stdin to
// stdout. Other arguments (`--allow-paths`) are accepted and mean nothing: imports come with the request, or from here.
// Forge asks for the version whenever it starts; loading the compiler for that would take longer than the tests.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const require = createRequire(import.meta.url);

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
  console.log(`solc, the solidity compiler commandline interface\nVersion: ${require("solc/package.json").version}`);
} else {
  process.stdout.write(require("solc").compile(readFileSync(0, "utf8"), { import: readImport }));
}
