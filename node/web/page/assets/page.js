// The stream from the node, what it has told, and which parts of the page must be drawn again.

import { at, say } from "./draw.js";
import { clock } from "./words.js";
import * as panels from "./panels.js";

const QUIET = 12000; // milliseconds without a word after which contact is lost: the node speaks every five seconds
const AGAIN = 3000;

const state = { rows: { members: [], decisions: [], steps: [], load: [], policies: [] }, all: false, now: () => Date.now() / 1000 + state.ahead, ahead: 0 };
const tables = { members: new Map(), decisions: new Map(), steps: new Map(), load: new Map(), policies: new Map() };
const NEEDS = {
  glance: ["run", "steps", "members", "verdicts", "training", "node", "audit"],
  alarms: ["training", "audit", "node", "run"],
  reward: ["steps", "run"],
  rounds: ["rounds"],
  samples: ["samples", "node"],
  picture: ["members", "node"],
  load: ["load"],
  age: ["training", "node"],
  split: ["training", "node"],
  way: ["training", "node"],
  members: ["members", "verdicts", "run", "node"],
  verdicts: ["verdicts", "decisions"],
  trust: ["slashes", "audit"],
  policies: ["policies"],
  money: ["money"],
  node: ["node", "run", "work"],
  events: ["events"],
  history: ["history"],
};

// -- drawing ----------------------------------------------------------------------------------------

const stale = new Set();
const sorting = new Set(); // tables that have changed since the last picture
let asked = false;

function changed(name) {
  for (const [panel, needs] of Object.entries(NEEDS)) if (name === null || needs.includes(name)) stale.add(panel);
  if (asked || !started) return;
  asked = true;
  requestAnimationFrame(draw);
}

function draw() {
  asked = false;
  for (const name of sorting) state.rows[name] = ordered(name);
  sorting.clear();
  const wanted = [...stale];
  stale.clear();
  for (const panel of wanted) panels[panel](state);
  window.drawn = (window.drawn ?? 0) + 1;
  if (window.drawn === 1) performance.mark("drawn");
}

// -- the stream -------------------------------------------------------------------------------------

let source = null;
let last = "";
let heard = 0;
let lostAt = null;
let started = false;
let columns = {};
let assets = null;

function connect() {
  source?.close();
  source = new EventSource(last ? `/events?after=${encodeURIComponent(last)}` : "/events");
  source.addEventListener("error", lost);
  for (const name of ["node", "run", "training", "verdicts", "slashes", "audit", "money", "work", "events", "history", "samples", "rounds"]) hear(name, (told) => { state[name] = told; });
  for (const name of Object.keys(tables)) hear(name, (told) => take(name, told));
  hear("hello", greet);
  hear("pulse", pulse);
}

function hear(name, act) {
  source.addEventListener(name, (event) => {
    window.heard = (window.heard ?? 0) + 1;
    act(JSON.parse(event.data), event);
    if (name !== "pulse" && name !== "hello") changed(name);
  });
}

// A daemon that has started again tells everything anew; one with other scripts than these needs them loaded.
function greet(told) {
  if (assets !== null && assets !== told.assets) location.reload();
  assets = told.assets;
  columns = told.columns;
}

function take(name, told) {
  const table = tables[name];
  if (told.whole) table.clear();
  for (const row of told.rows) table.set(row[0], Object.fromEntries(columns[name].map((column, i) => [column, row[i]])));
  sorting.add(name);
}

// Once a picture, not once an event.
function ordered(name) {
  const rows = [...tables[name].values()];
  return name === "members" ? rows : rows.sort((a, b) => a[columns[name][0]] - b[columns[name][0]]);
}

// The end of what was new, and the sign of life.
function pulse(now, event) {
  heard = Date.now();
  lostAt = null;
  state.ahead = now - Date.now() / 1000;
  if (event.lastEventId) last = event.lastEventId;
  contact("live", "live");
  if (!started && columns.members) {
    started = true;
    changed(null);
  }
}

function lost() {
  lostAt ??= heard || Date.now();
  contact("lost", heard ? `lost contact since ${clock(lostAt / 1000)}` : "no contact yet");
}

function contact(kind, text) {
  at("link").dataset.state = kind;
  say("link", text);
}

setInterval(() => {
  const closed = source.readyState === EventSource.CLOSED;
  if (closed || Date.now() - (heard || begun) > QUIET) {
    lost();
    if (closed || Date.now() - tried > QUIET) {
      tried = Date.now();
      connect();
    }
  }
}, AGAIN);

// -- controls ---------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };

function theme(kind) {
  if (kind) document.documentElement.dataset.theme = kind;
  const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  say("theme", now === "dark" ? "Light" : "Dark");
  at("theme").setAttribute("aria-label", `Use the ${now === "dark" ? "light" : "dark"} colours`);
  return now;
}

at("theme").addEventListener("click", () => {
  const next = theme() === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", next); } catch { /* a browser that keeps nothing: for this visit then */ }
  theme(next);
});
dark.addEventListener("change", () => theme());
at("find").addEventListener("input", () => changed("members"));
at("more").addEventListener("click", () => { state.all = !state.all; changed("members"); });
let wide = innerWidth;
addEventListener("resize", () => { if (wide !== innerWidth) { wide = innerWidth; changed(null); } });

const begun = Date.now();
let tried = begun;
theme(remembered());
connect();
