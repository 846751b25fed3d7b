// Pyodide under node: prints one JSON line of milliseconds. The programs come on standard input.
// Usage: node pyodide_bench.mjs DIRECTORY_WITH_NODE_MODULES start|all

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

const [where, what] = process.argv.slice(2);
const require = createRequire(join(where, "index.js"));
const indexURL = dirname(require.resolve("pyodide/package.json"));
const { loadPyodide, version } = await import(pathToFileURL(join(indexURL, "pyodide.mjs")));

const now = () => performance.now();
const opened = () => loadPyodide({ indexURL });

if (what === "start") {
  const pyodide = await opened();
  console.log(JSON.stringify({ value: pyodide.runPython("1+1") }));
  process.exit(0);
}

const found = { version: `pyodide ${version}`, fresh: [], warm: [], call: [], cpu: {}, memory_mib: [] };
found.call_what = "JavaScript function, an integer";

const kept = [];
for (let turn = 0; turn < 6; turn++) {
  const before = process.memoryUsage().rss;
  const began = now();
  const pyodide = await opened();
  pyodide.runPython("1+1");
  found.fresh.push(now() - began);
  found.memory_mib.push((process.memoryUsage().rss - before) / 1048576);
  kept.push(pyodide);
}
found.fresh.shift(); // the first compiles the module, as `start` shows
found.memory_mib.shift();

const pyodide = kept[0];
for (let turn = 0; turn < 2200; turn++) {
  const began = now();
  pyodide.runPython("1+1");
  if (turn >= 200) found.warm.push(now() - began);
}

pyodide.globals.set("echo", (value) => value);
const loop = (body) => `def bench():\n    for i in range(20000):\n        ${body}\nbench()`;
for (let turn = 0; turn < 8; turn++) {
  const began = now();
  pyodide.runPython(loop("pass"));
  const empty = now() - began;
  pyodide.runPython(loop("echo(1)"));
  if (turn) found.call.push((now() - began - 2 * empty) / 20000);
}

for (const [name, program] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  const samples = [];
  for (let turn = 0; turn < 8; turn++) {
    const began = process.cpuUsage();
    pyodide.runPython(program);
    const { user, system } = process.cpuUsage(began);
    if (turn) samples.push((user + system) / 1000);
  }
  found.cpu[name] = samples;
}
console.log(JSON.stringify(found));
process.exit(0);
