// One job: why it sends what it sends, what that saves, and who holds it up.

import { bar, lineChart, modeClass, modeStrip } from "/charts.js";
import { bytes, clock, clockOrBefore, el, howMany, percent, plain, seconds, sinceWhen, table, text } from "/dom.js";
import { isAlone, savedBytes, savedTime, sendsText, stepText } from "/jobs.js";
import { findingList, findingsOf, loadRules } from "/warnings.js";

const KEPT = 600; // Points of an hour.
const MODES = ["FULL", "COMPACTED", "TERNARY"];

function votesText({ masks, job }) {
  if (masks === null) return "No rank votes for masks: all elements travel.";
  const settled = masks.unchanged >= masks.settle
    ? `All votes have settled: unchanged for at least ${masks.settle} step${masks.settle === 1 ? "" : "s"} at every rank.`
    : `Not settled: rank ${masks.rank} has kept its masks for ${masks.unchanged} of the ${masks.settle} steps `
      + "that make its vote count, the fewest of all ranks.";
  const moved = masks.changed === null ? " No mask has changed in this generation."
    : ` The last change came before step ${masks.changed}${masks.moved ? `; most moved: ${masks.moved}` : ""}.`;
  return settled + moved + (job.keep === null ? "" : ` They keep ${percent(job.keep)} of the elements.`);
}

function failedText({ failed, failed_of: causes }) {
  const each = causes.map(([cause, count]) => `${plain(count, 12)} ${cause}`).join(", ");
  return plain(failed, 12) + (each ? `: ${each}` : "");
}

function keepRows({ parameters, others: [others, othersKept, othersElements] }) {
  const row = (name, kept, elements) => {
    const share = elements ? kept / elements : 1;
    return [name, bar(share), percent(share), plain(kept, 12), plain(elements, 12)];
  };
  const rows = parameters.map((parameter) => row(...parameter));
  if (others) rows.push(row(`${others} others together`, othersKept, othersElements));
  return rows;
}

function keepText({ told, teller, masks }, votes) {
  if (told) return `Of mask set ${masks}, told by ${teller}. Parameters are in the model's order; of more than 100 the largest have a row.`;
  if (votes === null) return "";
  return `What each parameter keeps was not told by ${teller || "rank 0"}: its masks have not settled, or its library or agent is older than this coordinator.`;
}

// How the time is known, and how it would be known better.
function timeNote(job) {
  if (isAlone(job)) return " All its trainers are at one site: nothing goes over a link, so there is nothing to spare.";
  if (job.saved_by === "full") return " Time is compared with the FULL steps that this generation ran.";
  if (!job.dense_bytes) return "";
  const how = job.saved_by ? " No step of this generation ran in FULL, so time is what links' measured rates are sure of: FULL's bytes over them, without round trips."
    : ` Time ${job.saved_seconds ? "of this generation " : ""}is not known: no step of it ran in FULL, and so few bytes go in a step that links show round trips and no rate.`;
  return how + (job.phase === "running"
    ? ` To measure it: pactrain-admin pin ${job.id} FULL, for a minute, then pactrain-admin unpin ${job.id}.` : "");
}

function figuresOf(message) {
  const job = message.job;
  const risk = message.risk_bound === 0 ? "none is allowed"
    : job.risk === null ? "not measured" : `${plain(job.risk)}, ${message.risk_bound} is allowed`;
  return [
    ["Saves", savedTime(job)], ["In bytes", savedBytes(job)],
    ["Sends", sendsText(job)],
    ["Bytes before, kept, sent", `${bytes(job.dense_bytes)}, ${bytes(job.kept_bytes)}, ${bytes(job.sent_bytes)}`],
    ["Waits for the exchange", job.share === null ? "not measured" : `${percent(job.share)} of a step`],
    ["Risk r", risk], ["Step", stepText(job)],
    ["Who", `${howMany(job.ranks, "rank")}, ${howMany(job.agents, "agent")}, ${howMany(job.sites, "site")}`],
    ["Failed attempts", failedText(message)],
  ];
}

export function jobScreen(id) {
  const points = { at: [], dense: [], wire: [], measured: [], predicted: [], risk: [], keep: [], share: [] };
  const why = el("p", { class: "why" });
  const reason = el("p", {});
  const next = el("p", {});
  const figures = el("dl", { class: "cards" });
  const wrong = findingList();
  const strip = modeStrip();
  const votes = el("p", {});
  const counts = table("Votes of ranks for leaving out what the masks leave out",
    [{ title: "For" }, { title: "For, not settled yet" }, { title: "Against" }, { title: "Not cast" }]
      .map((column) => ({ ...column, number: true })), []);
  const timeline = table("Modes, newest first",
    [{ title: "Since" }, { title: "Mode" }, { title: "Decision", number: true }, { title: "Reason" }], []);
  const perMode = table("By mode", [{ title: "Mode" }, { title: "Time in it", number: true },
    { title: "A step, measured", number: true }, { title: "Predicted", number: true }], []);
  const carried = lineChart("Bytes a second between sites", ["before", "after"], (v) => `${bytes(v)}/s`,
    "Nothing was sent in the last hour.");
  const steps = lineChart("A step, predicted and measured", ["measured", "predicted"], seconds,
    "No step was measured in the last hour.");
  const risk = lineChart("r and its bound", ["r", "bound"], (v) => plain(v),
    "r is not measured: what travels is exact, or too few steps were.");
  const keep = lineChart("Kept of all elements", ["kept"], percent, "No rank has voted for masks.");
  const masks = table("Mask sets in force, newest first",
    [{ title: "Since" }, { title: "Mask set" }, { title: "Keeps", number: true }], [], "none in the last hour");
  const counted = el("p", { class: "note" });
  const keepNote = el("p", { class: "note" });
  const keepOf = table("What each parameter keeps",
    [{ title: "Parameter" }, { title: "Share" }, { title: "Keeps", number: true },
      { title: "Kept", number: true }, { title: "Of", number: true }], []);
  keepOf.classList.add("keeps");
  let told = {}; // What each parameter keeps: it comes only when it changes.
  const slowest = table("Slowest agents", [{ title: "Agent" }, { title: "Site" },
    { title: "Computes", number: true }, { title: "Waits", number: true }], [], "no agent has reported a step");
  const paths = table("Which way gradients leave GPUs", [{ title: "Agent" }, { title: "By" },
    { title: "Summed by NCCL", number: true }, { title: "Fallbacks", number: true }, { title: "Why" }], [],
    "no model is on a GPU");
  const lost = el("p", {});
  const decisions = table("Decisions, newest first",
    [{ title: "Decision", number: true }, { title: "Mode" }, { title: "Mask set" }, { title: "Reason" }], []);
  const events = table("What happened, newest first",
    [{ title: "At" }, { title: "Kind" }, { title: "What" }], [], "nothing in the last hour");
  const heading = (name) => el("h2", {}, name);
  const found = el("div", {}, why, reason, next, strip, heading("What is wrong"), wrong,
    heading("What it saves"), figures, counted, carried,
    heading("Modes"), timeline, perMode,
    heading("Masks"), votes, counts, keep, masks, keepNote, keepOf,
    heading("Steps"), steps, el("p", { class: "note" },
      "Predicted is computing, and the bytes over the slowest link at its best measured rate, less what goes on behind computing. Other waits are not in it. Until a step ran in FULL, its prediction is what FULL takes at least."),
    risk, heading("Agents"), lost, slowest, paths, heading("Decisions and faults"), events, decisions);
  const gone = el("p", { class: "hidden" },
    "The coordinator knows no job of this name. It may have ended and been forgotten; ", el("a", { href: "#/" }, "all jobs"), ".");
  const hidden = el("p", { class: "hidden" },
    "There are more jobs than this page shows, and this is one of the others. "
    + `It shows those that run first, then those that ended last. To see this one: pactrain-admin job ${id}`);
  const element = el("section", {}, el("p", {}, el("a", { href: "#/" }, "All jobs")), el("h1", {}, id), gone, hidden, found);

  function keepPoints(message) {
    for (const [name, values] of Object.entries(message.points)) {
      points[name] = (message.full ? [] : points[name]).concat(values).slice(-KEPT);
    }
  }

  async function show(message) {
    await loadRules();
    gone.classList.toggle("hidden", !message.gone);
    hidden.classList.toggle("hidden", !message.hidden);
    found.classList.toggle("hidden", !message.job);
    if (!message.job) return;
    const { job, now } = message;
    keepPoints(message);
    text(why, `${job.mode || (job.phase === "failed" ? "ended by a fault" : job.phase)}, ${job.since_before ? "" : `since ${clock(job.since)}, `}${sinceWhen(job.since, job.since_before, now)}`
      + (job.mode && job.pin ? `; pinned to ${job.pin}` : ""));
    why.className = `why ${modeClass(job.mode)}`;
    text(reason, `${job.mode ? "Why: " : ""}${job.reason}.`);
    text(next, message.prepared ? `Next: ${message.prepared.mode}, since ${message.prepared.reason}.` : "");
    wrong.update(findingsOf(message.conditions, id), now);
    const pairs = figuresOf(message);
    if (figures.children.length !== pairs.length) {
      figures.replaceChildren(...pairs.map(([name]) => el("div", {}, el("dt", {}, name), el("dd"))));
    }
    text(counted, `Counted since ${clock(job.counted)}, when this coordinator first saw the job. `
      + "A coordinator that is started again counts anew: what was saved before is not in it."
      + timeNote(job));
    pairs.forEach(([, value], i) => text(figures.children[i].lastChild, value));
    strip.update(message.timeline, now);
    timeline.update(message.timeline.toReversed().map((p) =>
      [clockOrBefore(p), p.mode || "no generation", p.version ? String(p.version) : "", p.reason]));
    const known = (value) => (value === null ? "not known" : seconds(value));
    perMode.update(MODES.map((mode, i) => [mode, seconds(message.mode_seconds[i]),
      known(message.step_seconds[i]), known(message.predicted_seconds[i])]));
    text(votes, votesText(message));
    const cast = message.votes;
    counts.update([[cast.for, cast.settling, cast.against, cast.missing].map(String)]);
    carried.update(points.at, { before: points.dense, after: points.wire });
    steps.update(points.at, points);
    const bound = points.risk.some((r) => r !== null) ? points.at.map(() => message.risk_bound) : [];
    risk.update(points.at, { r: points.risk, bound });
    keep.update(points.at, { kept: points.keep });
    told = message.keep_of.told ? { ...told, ...message.keep_of } : message.keep_of;
    text(keepNote, keepText(told, message.masks));
    keepOf.classList.toggle("hidden", !told.parameters);
    keepOf.update(told.parameters ? keepRows(told) : []);
    masks.update(message.mask_sets.toReversed().map((m) => [clockOrBefore(m), m.digest, percent(m.keep)]));
    slowest.update(message.slowest.map((a) => [a.agent, a.site, seconds(a.compute), seconds(a.wait)]));
    paths.update(message.paths.map(([agent, path, sums, fallbacks, why]) =>
      [agent, path, plain(sums, 12), plain(fallbacks, 12), why]));
    text(lost, message.lost.length ? `Without a stream to the coordinator: ${message.lost.join(", ")}.`
      : "No agent of the generation is lost.");
    events.update(message.events.toReversed().map((e) => [clock(e.at), e.kind, e.text]));
    decisions.update(message.decisions.map((d) => [String(d.version), d.mode, d.masks || "none", d.reason]));
  }
  return { title: id, element, show };
}
