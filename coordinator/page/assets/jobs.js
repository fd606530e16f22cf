// The first screen: every job with what it does, what it saves and what is wrong.

import { bytes, el, howMany, money, percent, plain, ratio, seconds, sinceWhen, text } from "/dom.js";
import { findingsOf, severityWord } from "/warnings.js";

const COLUMNS = ["Job", "What travels", "Saves", "Sends", "Step", "What is wrong"];

function cells() {
  const link = el("a");
  const mode = el("strong");
  const since = el("span", { class: "sub" });
  const saves = el("strong");
  const how = el("span", { class: "sub" });
  const sends = el("span");
  const keep = el("span", { class: "sub" });
  const step = el("span");
  const who = el("span", { class: "sub" });
  const wrong = el("td", { role: "cell", "data-label": COLUMNS[5] });
  const td = (i, ...children) => el("td", { role: "cell", "data-label": COLUMNS[i] }, ...children);
  const row = el("tr", { role: "row" },
    el("th", { scope: "row", role: "rowheader", "data-label": COLUMNS[0] }, link),
    td(1, mode, since), td(2, saves, how), td(3, sends, keep), td(4, step, who), wrong);
  row.show = (job, findings, now) => {
    link.setAttribute("href", `#/job/${encodeURIComponent(job.id)}`);
    text(link, job.id);
    text(mode, job.mode || job.phase);
    text(since, `${sinceWhen(job.since, job.since_before, now)}${job.pin ? `, pinned to ${job.pin}` : ""}`);
    text(saves, savedTime(job));
    text(how, savedBytes(job));
    text(sends, sendsText(job));
    text(keep, job.keep === null ? "no masks" : `keeps ${percent(job.keep)}`);
    text(step, stepText(job));
    text(who, `${howMany(job.ranks, "rank")}, ${howMany(job.sites, "site")}`);
    showWrong(wrong, job, findings);
  };
  return row;
}

// All trainers are at one site, so nothing travels that could be spared.
export function isAlone(job) {
  return job.sites === 1 && job.dense_bytes === 0;
}

// Without a measured FULL step links' rates say what is sure, if they show any.
export function savedTime(job) {
  if (isAlone(job)) return "nothing: it has one site";
  const [saved, least] = job.saved_seconds < 0 ? [`${seconds(-job.saved_seconds)} lost`, "at most"]
    : [seconds(job.saved_seconds), "at least"];
  if (job.saved_by === "full") return saved;
  return job.saved_by || job.saved_seconds ? `${least} ${saved}` : "time not known";
}

export function sendsText(job) {
  return isAlone(job) ? "nothing" : ratio(job.dense_bytes, job.sent_bytes);
}

// Steps are counted from the coordinator's start on, their numbers from the job's.
export function stepText(job) {
  return job.steps || job.step ? plain(job.step, 12) : "none yet";
}

export function savedBytes(job) {
  return bytes(job.saved_bytes) + (job.money === null ? "" : `, ${money(job.money)} in money`);
}

function showWrong(cell, job, findings) {
  const wanted = findings.map((f) => `${severityWord(f)}: ${f.text}`);
  if (cell.shown === JSON.stringify(wanted)) return;
  cell.shown = JSON.stringify(wanted);
  cell.replaceChildren(...(findings.length === 0 ? ["nothing"] : findings.map((f, i) =>
    el("span", { class: `finding ${f.fires ? f.severity : "waits"}` }, wanted[i]))));
}

function rank(job, findings) {
  if (findings.some((f) => f.fires && f.severity === "critical")) return 0;
  if (findings.some((f) => f.fires)) return 1;
  if (findings.length > 0) return 2;
  return { failed: 2, running: 3, waiting: 4 }[job.phase] ?? 5;
}

export function jobsScreen() {
  const jobs = new Map();
  const rows = new Map();
  const figures = {};
  const cards = el("dl", { class: "cards" }, [
    ["jobs", "Jobs"], ["agents", "Agents"], ["time", "Time saved"], ["bytes", "Bytes saved"],
    ["money", "Money saved"], ["wrong", "Warnings"],
  ].map(([key, title]) => {
    figures[key] = el("dd", {}, "...");
    return el("div", {}, el("dt", {}, title), figures[key]);
  }));
  const general = el("ul", { class: "general" });
  const filter = el("input", { type: "search", id: "filter", autocomplete: "off" });
  const body = el("tbody", { role: "rowgroup" });
  const empty = el("p", { class: "note" }, "No job is known yet. One shows here as soon as a trainer attaches.");
  const whole = el("table", { class: "jobs", role: "table" },
    el("caption", {}, "All jobs, what is wrong first. Savings are against FULL, since this coordinator started."),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" },
      COLUMNS.map((c) => el("th", { scope: "col", role: "columnheader" }, c)))), body);
  let newest = null;

  function order() {
    const wanted = filter.value.trim().toLowerCase();
    const shown = [...jobs.values()].filter((job) => job.id.toLowerCase().includes(wanted))
      .map((job) => [rank(job, findingsOf(newest.conditions, job.id)), job])
      .sort(([a, x], [b, z]) => a - b || (x.id < z.id ? -1 : 1)).map(([, job]) => job);
    const ordered = shown.map((job) => {
      if (!rows.has(job.id)) rows.set(job.id, cells());
      const row = rows.get(job.id);
      row.show(job, findingsOf(newest.conditions, job.id), newest.now);
      return row;
    });
    // Only what moves is moved: a focused link keeps its focus.
    ordered.forEach((row, i) => {
      if (body.children[i] !== row) body.insertBefore(row, body.children[i] ?? null);
    });
    while (body.children.length > ordered.length) body.lastChild.remove();
    empty.classList.toggle("hidden", jobs.size > 0);
    whole.classList.toggle("hidden", jobs.size === 0);
  }

  function show(message) {
    newest = message;
    if (message.full) jobs.clear();
    for (const job of message.jobs) jobs.set(job.id, job);
    for (const id of rows.keys()) if (!jobs.has(id)) rows.delete(id);
    const all = [...jobs.values()];
    const sum = (key) => all.reduce((total, job) => total + job[key], 0);
    const running = all.filter((job) => job.phase === "running").length;
    const failed = all.filter((job) => job.phase === "failed").length;
    const waiting = all.filter((job) => job.phase === "waiting").length;
    text(figures.jobs, `${running} running${waiting ? `, ${waiting} waiting` : ""}${failed ? `, ${failed} failed` : ""}`
      + (message.hidden ? `; ${message.hidden} more are not shown` : ""));
    text(figures.agents, `${message.connected} of ${message.agents} connected`);
    const unknown = all.filter((job) => job.saved_by === "" && job.phase === "running" && !isAlone(job)).length;
    const sure = all.every((job) => job.saved_by === "full" || (!job.saved_by && !job.saved_seconds));
    const saved = sum("saved_seconds");
    text(figures.time, unknown && !saved ? "not known"
      : (sure ? "" : "at least ") + seconds(saved) + (unknown ? `; not known of ${unknown}` : ""));
    text(figures.bytes, bytes(sum("saved_bytes")));
    text(figures.money, message.price_per_gb
      ? `${money(sum("money"))} at ${money(message.price_per_gb)} per GB`
      : "no price: start with --price-per-gb");
    const found = message.conditions.flatMap((c) => c.found);
    text(figures.wrong, found.length === 0 ? "none" : `${found.filter((f) => f.fires).length} now, `
      + `${found.filter((f) => !f.fires).length} may come`);
    const others = findingsOf(message.conditions, "").map((f) => `${severityWord(f)}: ${f.text}`);
    if (general.shown !== JSON.stringify(others)) {
      general.shown = JSON.stringify(others);
      general.replaceChildren(...others.map((line) => el("li", {}, line)));
    }
    general.classList.toggle("hidden", others.length === 0);
    order();
  }
  filter.addEventListener("input", () => newest && order());
  const element = el("section", {}, el("h1", {}, "Jobs"), cards,
    el("h2", { class: "hidden" }, "Of no job"), general,
    el("p", { class: "filter" }, el("label", { for: "filter" }, "Show jobs whose name holds"), " ", filter),
    whole, empty);
  return { title: "Jobs", element, show };
}
