// What each part of the page shows. `state` holds the sections as this node tells them; `state.rows` its tables.

import { at, bar, facts, make, none, put, say } from "./draw.js";
import { follow, lines, strips, swarm, table } from "./charts.js";
import { clock, count, duration, fixed, name, percent, plural, seconds, short, tokens } from "./words.js";

const FEW = 25;
const LEGEND = [["■", "trainer"], ["▲", "validator"], ["●", "worker"], ["◎", "this node, with lines to its peers"]];
const LEARNER = ["wait", "load", "pack", "forward_backward", "optimizer", "publish", "announce", "checkpoint"];
const SPLIT_WORDS = { wait: "waiting for a batch", load: "loading it", pack: "packing", forward_backward: "learning", optimizer: "optimiser", publish: "writing the policy", announce: "announcing it", eval: "evaluating", checkpoint: "checkpoint" };
const FILE_WORDS = { commit: "made and promised", verify: "judged", fetch: "fetched", queue: "waiting for its turn" };

const width = (id) => Math.max(at(id).clientWidth, 240);
const alive = (member) => member.state === "healthy" || member.state === "unhealthy";
const me = (state) => state.node?.address ?? "";
const role = (state) => state.node?.role || "node";

function runningMean(points, window = 10) {
  let sum = 0;
  return points.map(([x, y], i) => {
    sum += y - (i >= window ? points[i - window][1] : 0);
    return [x, sum / Math.min(i + 1, window)];
  });
}

// What 95 of 100 repetitions of the same evaluations would give, around their running mean.
function bandOf(steps, mean, window = 10) {
  const known = steps.filter((row) => row.eval !== null);
  return mean.flatMap(([x, y], i) => {
    const some = known.slice(Math.max(0, i - window + 1), i + 1);
    const told = some.filter((row) => row.error !== null);
    if (!told.length) return [];
    const half = 1.96 * Math.sqrt(told.reduce((sum, row) => sum + row.error ** 2, 0) / told.length / some.length);
    return [[x, y - half, y + half]];
  });
}

const column = (steps, key) => steps.filter((row) => row[key] !== null).map((row) => [row.step, row[key]]);

// The curve that says how the run goes: the trainer's record, or its word in heartbeats.
function curve(state) {
  const steps = state.rows.steps;
  const own = column(steps, "eval");
  if (own.length) return { raw: own, mean: runningMean(own), train: column(steps, "train"), source: "eval" };
  return { raw: [], mean: column(steps, "told"), train: column(steps, "own"), source: "told" };
}

// -- at a glance ------------------------------------------------------------------------------------

function pace(state) {
  const timed = state.rows.steps.filter((row) => row.at !== null).slice(-30);
  if (timed.length < 2) return null;
  const [first, last] = [timed[0], timed.at(-1)];
  return last.step > first.step ? (last.at - first.at) / (last.step - first.step) : null;
}

function headline(state) {
  const { run, node, audit } = state;
  if (audit?.distrust) return `This node works no more for its trainer: ${audit.distrust}.`;
  if (run?.over) return `The run is over${run.final === null ? "" : `: mean reward ${fixed(run.final)} on problems that were never trained on`}. The model can be had with intellect-node weights fetch.`;
  if (!node) return "Asking this node what it sees.";
  if (!run || !run.name || run.step === null || run.step < 0) return `${node.phase?.text || `This ${role(state)} is ${node.state || "starting"}, and has no policy yet`}.`;
  const mean = curve(state).mean;
  const left = pace(state) === null || !run.total || run.step >= run.total ? "" : ` At this pace ${duration((run.total - run.step) * pace(state))} are left.`;
  if (mean.length < 2) return `Training is at step ${count(run.step)} of ${count(run.total)}.${left}`;
  const [from, to] = [mean[Math.min(9, Math.floor(mean.length / 2))][1], mean.at(-1)[1]];
  const way = Math.abs(to - from) < 0.02 ? `stands at ${fixed(to)}` : `${to > from ? "rose" : "fell"} from ${fixed(from)} to ${fixed(to)}`;
  return `The mean reward on problems never trained on ${way} in ${plural(run.step, "step")}.${left}`;
}

function figure(term, value, unit, more, kind = "") {
  const main = make("dd", { class: kind }, value, unit ? make("small", {}, ` ${unit}`) : null);
  return make("div", {}, make("dd", { class: "more" }, more || " "), main, make("dt", {}, term));
}

export function glance(state) {
  const { run, verdicts, training } = state;
  const mean = curve(state).mean;
  const reward = mean.at(-1)?.[1] ?? run?.final ?? null;
  const rose = mean.length > 1 ? reward - mean[Math.min(9, Math.floor(mean.length / 2))][1] : null;
  const members = state.rows.members;
  const working = members.filter(alive);
  const rate = working.filter((one) => one.role === "worker").reduce((sum, one) => sum + one.rate, 0);
  const judged = (verdicts?.accepted ?? 0) + (verdicts?.rejected ?? 0);
  const evicted = members.filter((one) => one.state === "evicted").length;
  const step = run?.step ?? -1;
  put("glance", [
    figure("Mean reward", fixed(reward), "", rose === null ? "" : `${rose < 0 ? "−" : "+"}${fixed(Math.abs(rose))} since the start`, rose > 0.005 ? "good" : ""),
    figure("Step", step < 0 ? "–" : count(step), run?.total ? `of ${count(run.total)}` : "", training?.seconds_per_step ? `${seconds(training.seconds_per_step)} per step` : pace(state) ? `${seconds(pace(state))} per step` : ""),
    figure("Members alive", count(working.length), `of ${count(members.length)}`, evicted ? `${plural(evicted, "was", "were")} evicted` : ""),
    figure("Tokens per second", count(rate), "", "all workers together"),
    figure("Files accepted", judged ? percent(verdicts.accepted / judged) : "–", "", judged ? `${count(verdicts.rejected)} of ${count(judged)} refused` : "none judged yet"),
  ]);
  at("progress").value = run?.over ? 1 : run?.total && step >= 0 ? step / run.total : 0;
  say("title", run?.name || "A swarm");
  say("headline", headline(state));
  document.title = run?.name ? `${step < 0 ? "" : `${step} · `}${run.name} · intellect-node` : "intellect-node";
}

export function alarms(state) {
  const ringing = (state.training?.alarms ?? []).map((one) => [name(one.name), `${one.text} (since step ${one.step})`]);
  if (state.training?.memory) ringing.push(["memory", state.training.memory]);
  if (state.audit?.distrust) ringing.unshift(["the trainer", state.audit.distrust]);
  if (state.node?.error) ringing.unshift([state.node.error.what, state.node.error.remedy]);
  if (state.run && state.run.name && !state.run.chain_ok) ringing.push(["chain", "its RPC endpoint does not answer this node"]);
  at("alarms").hidden = !ringing.length;
  put("alarms", ringing.map(([what, why]) => make("p", {}, make("b", {}, what), `: ${why}`)));
}

// -- curves -----------------------------------------------------------------------------------------

const key = (text, kind = "") => make("span", { class: `key ${kind}` }, make("i", { "aria-hidden": "true" }), text);

export function reward(state) {
  const { raw, mean, train, source } = curve(state);
  if (!mean.length && !train.length) {
    put("reward", none(role(state) === "trainer" ? "The first evaluation is under way." : "The trainer has not told of an evaluation yet."));
    return put("reward-note", "");
  }
  const all = [...raw, ...mean, ...train];
  const high = Math.max(...all.map(([, y]) => y), state.run?.goal ?? 0);
  const low = Math.min(...all.map(([, y]) => y), 0);
  const last = Math.max(...all.map(([x]) => x), 10);
  const first = Math.min(...all.map(([x]) => x));
  const label = mean.length ? `Mean reward by step: ${fixed(mean[0][1])} at step ${mean[0][0]}, ${fixed(mean.at(-1)[1])} at step ${mean.at(-1)[0]}` : "Rewards of this node's own files by step";
  const xRange = [last - first > 20 ? first : 0, last];
  const series = [{ class: "back", points: train }, { dots: true, points: raw }, { class: "main", points: mean }];
  const band = source === "eval" ? bandOf(state.rows.steps, mean) : [];
  const chart = lines(width("reward"), 280, label, { series, band, xRange, yRange: [low, high > 0.6 && high <= 1 ? 1 : high * 1.08 || 1], xText: (x) => count(x), yText: (y) => fixed(y, 1), goal: state.run?.goal });
  const keys = source === "eval" ? [key("held-back, mean of ten"), band.length ? key("95 % of what chance allows", "band") : null, key("each evaluation", "dots"), key("training", "thin")] : [key("held-back, as the trainer tells it"), train.length ? key("own files, own estimate", "thin") : null];
  const tell = (x) => put("reward-note", x === null ? keys : readout(state, x));
  follow(chart, xRange, tell);
  put("reward", chart.root);
  tell(null);
  rewardTable(state);
}

function readout(state, x) {
  const near = state.rows.steps.reduce((best, row) => (best === null || Math.abs(row.step - x) < Math.abs(best.step - x) ? row : best), null);
  const parts = [["held-back", near.eval ?? near.told], ["training", near.train], ["own files", near.own], ["tokens/s", near.rate]];
  const told = parts.filter(([, value]) => value !== null && value !== undefined).map(([what, value]) => `${what} ${value > 50 ? count(value) : fixed(value, 3)}`);
  return make("span", { class: "readout" }, `step ${count(near.step)}: ${told.join(", ") || "nothing on record"}`);
}

function rewardTable(state) {
  const rows = state.rows.steps.slice(-12).reverse().map((row) => ({ cells: [count(row.step), fixed(row.eval ?? row.told, 3), fixed(row.train ?? row.own, 3), seconds(row.seconds), row.age === null ? "–" : fixed(row.age)] }));
  put("reward-table", table([["Step", "num"], ["Held-back", "num"], ["Training", "num"], ["Time", "num"], ["Steps behind", "num"]], rows, "Rewards of the last steps"));
}

// The model's own words, as text: nothing that it writes becomes markup.
export function samples(state) {
  const told = state.samples;
  if (!told) {
    say("samples-note", "");
    return put("samples", none(role(state) === "trainer" ? "The first evaluation is under way." : `Only the trainer’s node has answers on record; this node is a ${role(state)}.`));
  }
  say("samples-note", "the first few answers to problems that are never trained on, drawn anew each time; the curve above has the mean of all");
  put("samples", [["Before", told.before], ["Now", told.after]].filter(([, one]) => one).map(([title, one]) => make("div", {}, make("h3", {}, `${title}: step ${count(one.step)}`), make("ul", { class: "samples" }, one.answers.map(sample)))));
}

function sample(one) {
  const facts = [one.reward === null ? null : `reward ${fixed(one.reward)}`, one.length === null ? null : `${plural(one.length, "token")}${one.target === null ? "" : ` of ${count(one.target)} asked for`}`, one.finished ? null : "cut off"];
  return make("li", {}, make("p", { class: "problem" }, one.problem), make("p", { class: "answer" }, one.answer || "(nothing)"), make("p", { class: one.reward > 0.5 ? "more yes" : "more" }, facts.filter(Boolean).join(", ")));
}

export function load(state) {
  const points = state.rows.load.filter((row) => row.rate !== null).map((row) => [10 * row.at, row.rate]);
  if (points.length < 2) {
    put("load-note", "");
    return put("load", none("A curve begins after twenty seconds."));
  }
  const most = Math.max(...points.map(([, y]) => y), 10);
  const xRange = [points[0][0], points.at(-1)[0]];
  const label = `Tokens per second of all workers together: now ${count(points.at(-1)[1])}, at most ${count(most)}`;
  const ago = (x) => (xRange[1] - x < 1 ? "now" : `${duration(xRange[1] - x)} ago`);
  const { root } = lines(width("load"), 170, label, { series: [{ class: "main", points }], area: true, xRange, yRange: [0, most * 1.08], xText: () => "", yText: (y) => (y >= 1e6 ? `${y / 1e6}M` : y >= 1000 ? `${y / 1000}k` : count(y)) });
  put("load", root);
  say("load-note", `tokens per second by heartbeats, since ${ago(xRange[0])}`);
}

// Rounds of a run that has some; nothing of others.
export function rounds(state) {
  const told = state.rounds;
  at("rounds-panel").hidden = !told;
  if (!told) return;
  const { outer_states, peers, losses } = told;
  say("rounds-note", `round ${Math.min(told.round + 1, told.rounds)} of ${told.rounds}, loss of its ${told.of_rollouts ? "trainers" : "peers in nats per token"}`);
  const highest = Math.max(...losses.map(([, loss]) => loss), 0);
  const label = losses.length ? `Loss by round: now ${fixed(losses.at(-1)[1])}` : "";
  const box = { series: [{ class: "main", points: losses }], xRange: [0, told.rounds], yRange: [Math.min(...losses.map(([, loss]) => loss), 0) * 1.08, highest * 1.08], xText: (x) => count(x), yText: (y) => fixed(y) };
  put("rounds", losses.length > 1 ? lines(width("rounds"), 170, label, box).root : none("A curve begins after two rounds."));
  put("rounds-facts", facts([
    ["outer states equal", `${outer_states.equal ?? 0} of ${outer_states.of ?? 0}`],
    ["contributions of the last round", told.contributions],
    ["held-back loss", told.eval_loss === null ? null : `${fixed(told.eval_loss)}, perplexity ${fixed(told.perplexity)}`],
    [told.of_rollouts ? "rollouts per second" : "tokens per second", told.tokens_per_second === null ? null : count(told.tokens_per_second)],
    ["bits per parameter", told.bits_per_parameter],
  ]));
  const equal = (one) => (one.equal === null ? "not known" : one.equal ? "equal" : "differs");
  const rows = peers.filter((one) => one.replica_id >= 0).map((one) => ({ cells: [short(one.address), one.replica_id, one.round + 1, one.in ? "has contributed" : "at work", equal(one)] }));
  const heads = [["peer"], ["replica", "num"], ["round", "num"], ["this round"], ["outer state"]];
  put("rounds-peers", rows.length ? table(heads, rows, "Peers of the round") : none("No other peer is heard."));
}

// -- bars -------------------------------------------------------------------------------------------

function bars(rows, kind = "") {
  return make("ul", { class: `bars ${kind}` }, rows.map(([text, share, value, more, tone]) => make("li", {}, make("span", {}, text), bar(share, tone), make("span", { class: "value" }, value), make("span", { class: "more" }, more))));
}

export function age(state) {
  const staleness = state.training?.staleness;
  if (!staleness) {
    say("age-note", "");
    return put("age", none(`Only the trainer knows how old rollouts were when they were trained on; this node is a ${role(state)}.`));
  }
  const ages = Object.entries(staleness).filter(([key]) => key !== "dropped");
  const total = ages.reduce((sum, [, n]) => sum + n, 0) + (staleness.dropped ?? 0);
  const rows = ages.map(([key, n]) => [key === "0" ? "fresh" : plural(Number(key), "step"), total ? n / total : 0, count(n), percent(total ? n / total : 0)]);
  rows.push(["dropped", total ? (staleness.dropped ?? 0) / total : 0, count(staleness.dropped ?? 0), percent(total ? (staleness.dropped ?? 0) / total : 0), "bad"]);
  say("age-note", "rollouts by how many steps their policy was behind");
  put("age", bars(rows, "short"));
}

export function split(state) {
  const times = state.training?.seconds ?? {};
  const parts = LEARNER.filter((part) => times[part] > 0).map((part) => [SPLIT_WORDS[part], times[part]]);
  const total = parts.reduce((sum, [, time]) => sum + time, 0);
  if (!total) {
    say("split-note", "");
    return put("split", none(state.training ? "No step is over yet." : `Only the trainer measures its steps; this node is a ${role(state)}.`));
  }
  const rows = parts.map(([text, time], i) => [text, time / total, seconds(time), percent(time / total), text === SPLIT_WORDS.wait ? "calm" : ""]);
  say("split-note", `step ${count(state.training.step)} of the learner: ${seconds(total)}`);
  put("split", bars(rows));
}

export function way(state) {
  const times = state.training?.file_seconds ?? {};
  const parts = Object.keys(FILE_WORDS).filter((part) => times[part] !== undefined);
  if (!parts.length) {
    say("way-note", "");
    return put("way", none(state.training ? "No batch has been made since this node started." : `Only the trainer sees a file’s whole way; this node is a ${role(state)}.`));
  }
  const longest = Math.max(...parts.map((part) => times[part]), 0.001);
  say("way-note", "from a policy’s publication on, means over the newest batch");
  put("way", bars(parts.map((part) => [FILE_WORDS[part], times[part] / longest, seconds(times[part]), "", "calm"])));
}

// -- members ----------------------------------------------------------------------------------------

export function picture(state) {
  const members = state.rows.members.map((one) => ({ ...one, me: one.address === me(state) }));
  if (!members.length) {
    say("swarm-note", "");
    return put("swarm", none("Nobody is known yet."));
  }
  const states = Object.entries(Object.groupBy(members, (one) => one.state)).map(([word, list]) => `${count(list.length)} ${word}`);
  const label = `${plural(members.length, "member")}: ${states.join(", ")}. This node is connected with ${members.filter((one) => one.connected && !one.me).length}.`;
  put("swarm", swarm(members, label));
  put("swarm-note", LEGEND.flatMap(([shape, text]) => [make("span", { "aria-hidden": "true" }, `${shape} `), `${text} `]));
}

const contributed = (a, b) => b.units - a.units || b.accepted - a.accepted || a.rejected - b.rejected || (a.role < b.role ? -1 : a.role > b.role ? 1 : 0);

export function members(state) {
  const all = state.rows.members;
  const units = { all: all.reduce((sum, one) => sum + one.units, 0), most: Math.max(...all.map((one) => one.units), 1) };
  const wanted = at("find").value.trim().toLowerCase();
  const found = all.filter((one) => !wanted || one.address.toLowerCase().includes(wanted) || one.role.includes(wanted) || one.state.includes(wanted)).sort(contributed);
  const shown = state.all ? found : found.slice(0, FEW);
  at("find-line").hidden = all.length <= 12;
  at("more").hidden = found.length <= FEW;
  say("more", state.all ? `Show ${FEW}` : `Show all ${count(found.length)}`);
  if (!all.length) return put("members", none("Nobody is known yet."));
  const heads = [["Member"], ["Role", "wide"], ["State"], ["Step", "num wide"], ["Tokens/s", "num wide"], ["Accepted", "num"], ["Rejected", "num"], ["Used", "num wide"], ["Left out", "num wide"], ["Share", "num"], ["Last heard", "num wide"]];
  put("members", table(heads, shown.map((one) => memberRow(one, units, state)), "Members of the swarm"));
  const since = state.verdicts ? `Accepted and rejected files as this node has counted verdicts since ${clock(state.verdicts.since, state.now())}.` : "Verdicts are not counted yet.";
  const cut = state.run?.members > all.length ? ` The first ${count(all.length)} of ${count(state.run.members)} are listed.` : "";
  const uses = all.some((one) => one.used !== null) ? " Used and left out by the trainer: as its manifests say; a file is left out that was accepted in time and fresher than one that was used." : "";
  say("members-note", since + uses + cut);
}

function memberRow(one, units, state) {
  const mine = one.address === me(state);
  const judged = one.accepted || one.rejected;
  const activity = one.state === "healthy" && one.activity ? one.activity : one.state;
  return {
    kind: mine ? "me" : null,
    cells: [
      make("span", { class: "mono", title: one.address }, short(one.address), mine ? make("small", { class: "tag" }, " this node") : null),
      one.role || "–",
      make("span", { class: `state ${one.state}`, title: one.reason ? name(one.reason) : null }, name(activity)),
      one.step === null || one.step < 0 ? "–" : count(one.step),
      one.rate ? count(one.rate) : "–",
      judged ? count(one.accepted) : "–",
      one.rejected ? make("span", { class: "no" }, count(one.rejected)) : judged ? "0" : "–",
      one.used === null ? "–" : count(one.used),
      one.left_out ? make("span", { class: "no" }, count(one.left_out)) : one.left_out === null ? "–" : "0",
      one.units ? make("span", { class: "share" }, bar(one.units / units.most), percent(one.units / units.all)) : "–",
      one.seen === null ? "–" : clock(one.seen, state.now()),
    ],
  };
}

// -- verdicts, slashes, policies --------------------------------------------------------------------

const moment = (at, state) => make("time", { datetime: at ? new Date(1000 * at).toISOString() : null }, clock(at, state.now()));

export function verdicts(state) {
  const told = state.verdicts;
  const newest = state.rows.decisions.toSorted((a, b) => b.number - a.number);
  if (!told || !newest.length) {
    say("verdicts-note", "");
    return put("verdicts", none("No file has been judged yet, as far as this node has heard."));
  }
  const reasons = Object.entries(told.by_reason).sort((a, b) => b[1] - a[1]);
  const most = Math.max(...reasons.map(([, n]) => n), 1);
  put("verdicts-note", `${count(told.accepted)} accepted, ${count(told.rejected)} rejected by the validators’ quorum`);
  const rows = grouped(newest).map(({ one, files, oldest }) => make("li", {}, moment(one.at, state), make("span", {}, make("span", { class: one.accepted ? "yes" : "no" }, one.accepted ? "accepted" : "rejected"), files === 1 ? ` ${short(one.node)}, file ${one.index} of step ${one.step}` : ` ${short(one.node)}, ${count(files)} files of ${oldest.step === one.step ? `step ${one.step}` : `steps ${oldest.step} to ${one.step}`}`, one.accepted ? null : make("span", { class: "why" }, `: ${[name(one.reason), one.detail].filter(Boolean).join(", ")}`))));
  put("verdicts", reasons.length ? bars(reasons.slice(0, 5).map(([reason, n]) => [name(reason), n / most, count(n), "", "bad"])) : null, make("ul", { class: "list", tabindex: "0", role: "region", "aria-label": "Newest verdicts" }, rows));
}

// Verdicts of one kind about one member stand in one line; the newest kind comes first.
function grouped(newest) {
  const groups = new Map();
  for (const one of newest) {
    const key = `${one.node} ${one.accepted} ${one.reason}`;
    const group = groups.get(key);
    if (group) Object.assign(group, { files: group.files + 1, oldest: one.step < group.oldest.step ? one : group.oldest });
    else groups.set(key, { one, files: 1, oldest: one });
  }
  return [...groups.values()];
}

export function trust(state) {
  const { slashes, audit } = state;
  const lost = (slashes ?? []).toReversed().map((one) => make("li", {}, make("span", { class: "no" }, "slashed"), make("span", {}, make("span", { class: "mono", title: one.node }, short(one.node)), ` lost ${tokens(one.amount)} tokens for ${name(one.reason)}`, make("span", { class: "why" }, `, block ${count(one.block)}, transaction `, make("span", { class: "mono", title: one.transaction }, short(one.transaction))))));
  const doubted = (audit?.quarantined ?? []).map((one) => make("li", {}, make("span", { class: "no" }, "not believed"), make("span", {}, make("span", { class: "mono", title: one.address }, short(one.address)), `: ${one.why}`)));
  say("trust-note", lost.length || doubted.length ? "" : "Nobody has lost a stake, and every validator is believed.");
  const pairs = !audit ? [] : [
    ["Chance that a cheat is seen", audit.power === null ? "no window of steps is complete yet" : `${percent(audit.power)} in one window, if ${percent(audit.cheated_share)} of the groups are forged (wanted ${percent(audit.wanted)})`],
    ["Looked at", audit.checked_share === null ? null : audit.checked_share >= 1 ? "everything: each group was recomputed" : `${percent(audit.checked_share)} of the groups; nobody trains on the others`],
    ["Disputes between validators", audit.disputes.raised === undefined ? null : `${count(audit.disputes.raised)}, open ${count(audit.disputes.open ?? 0)}`],
    ["The trainer", audit.distrust ? make("span", { class: "warn" }, audit.distrust) : "has contradicted itself nowhere"],
    ["Its steps, replayed", audit.audited ? make("span", audit.audited.held < audit.audited.steps ? { class: "warn" } : {}, `${count(audit.audited.held)} of ${count(audit.audited.steps)} audited ones held; the last, step ${count(audit.audited.last_step)}: ${audit.audited.says}, by `, make("span", { class: "mono", title: audit.audited.by }, short(audit.audited.by))) : "none was audited yet"],
  ];
  put("trust", lost.length || doubted.length ? make("ul", { class: "list" }, [...lost, ...doubted]) : null, audit ? facts(pairs) : none("This node has not heard of the pool’s validators yet."));
}

export function policies(state) {
  const rows = state.rows.policies.toSorted((a, b) => b.step - a.step).slice(0, 8);
  if (!rows.length) {
    say("policies-note", "");
    return put("policies", none("No policy has come since this node started to look."));
  }
  const most = Math.max(...rows.map((row) => row.seconds.at(-1) ?? 0), 1);
  const whole = rows.find((row) => row.held >= row.live) ?? rows.at(-1);
  const label = `Seconds until members held each of the newest ${rows.length} policies; step ${whole.step}: ${whole.held} of ${whole.live} members within ${seconds(whole.seconds.at(-1))}`;
  put("policies", strips(width("policies"), label, rows, most));
  say("policies-note", "seconds after the first member held it, one dot a member, as their heartbeats tell: at the latest then");
}

// -- money, this node, events -----------------------------------------------------------------------

function copyable(text) {
  if (!text) return null;
  const button = make("button", { type: "button", class: "copy", "aria-label": `Copy ${text}` }, "copy");
  button.addEventListener("click", () => navigator.clipboard?.writeText(text).then(() => { button.textContent = "copied"; }, () => { button.textContent = "select it by hand"; }));
  return make("span", {}, make("span", { class: "mono" }, text), " ", button);
}

export function money(state) {
  const told = state.money;
  if (!told) return;
  if (!told.known) {
    say("money-note", "");
    return put("money", facts([["Stake that answers for it", `${tokens(told.bonded)} tokens`]]), none("What this node has earned is not known before it has joined."));
  }
  say("money-note", "of this node, in tokens");
  const until = told.until ? `, claimable from ${clock(told.until, state.now())} by the chain’s clock` : "";
  put("money", facts([
    ["Earned", tokens(told.earned)],
    ["Claimed", tokens(told.paid)],
    ["In the table", tokens(told.due)],
    ["Certified", tokens(told.waiting) + (told.waiting ? until : "")],
    ["Missed", told.missed ? `${tokens(told.missed)}: their table has them not` : null],
    ["Unclear", told.unclear ? `${tokens(told.unclear)}: nobody here knows whether a table has these works` : null],
    ["The escrow lasts for", told.lasts === null ? null : plural(told.lasts, "more epoch")],
    ["Stake", tokens(told.bonded) + (told.slashed ? `, ${tokens(told.slashed)} lost` : "")],
    ["Goes to", copyable(told.provider)],
    ["Pool", told.escrow === null ? null : `${tokens(told.escrow)} left, ${tokens(told.per_unit)} per unit`],
  ]), told.warnings.map((text) => make("p", { class: "warn" }, text)));
}

export function node(state) {
  const told = state.node;
  if (!told) return;
  const phase = told.phase ? `${name(told.phase.name)}, since ${clock(told.phase.since, state.now())}` : told.state;
  say("node-note", told.phase?.text ?? "");
  const done = told.phase?.progress;
  put("node", facts([
    ["Role", told.role || "not yet decided"],
    ["Phase", done === null || done === undefined ? phase : `${phase} (${percent(done)})`],
    ["Waiting", told.waiting],
    ["Address", copyable(told.address)],
    ["Network", state.run?.network ? `${state.run.network}, chain ${state.run.chain}, pool ${state.run.pool < 0 ? "–" : state.run.pool}, block ${count(state.run.block)}` : null],
    ["Connected with", state.run?.peers === null || state.run?.peers === undefined ? null : plural(state.run.peers, "peer")],
    ["Own files", state.work?.files_committed ? `${count(state.work.files_committed)} made, ${count(state.work.files_accepted)} accepted, ${count(state.work.files_rejected)} rejected` : null],
    ["Engine", told.engine],
    ["Started again", Object.entries(told.restarts).map(([what, n]) => `${what} ${n ? plural(n, "time") : "never"}`).join(", ")],
    ["Running since", clock(told.since, state.now())],
    ["Version", told.version],
  ]));
}

export function events(state) {
  const told = state.events ?? [];
  if (!told.length) return put("events", none("This node keeps no list of events, or nothing has happened yet."));
  put("events", make("ul", { class: "list", tabindex: "0", role: "region", "aria-label": "Newest events" }, told.toReversed().map((one) => make("li", {}, moment(one.at, state), make("span", {}, one.text)))));
}

export function history(state) {
  say("history-note", state.history?.fault ? `The curves are not being kept on disk: ${state.history.fault}. They end with this process.` : "");
}
