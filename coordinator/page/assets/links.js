// The links between sites: the plan in force as a graph, and what each direction carries.

import { aligned, lineChart, siteGraph } from "/charts.js";
import { el, percent, rate, seconds, table, text } from "/dom.js";
import { findingList, findingsOf, loadRules } from "/warnings.js";

const KEPT = 600;
const CHARTED = 4; // Lines that can be told from each other.

export function linksScreen() {
  const chosen = el("select", { id: "plan" });
  const plan = el("p", {});
  const graph = siteGraph();
  const none = el("p", { class: "note" }, "No job runs, so there is no plan.");
  const links = table("Links, fullest first", [{ title: "From" }, { title: "To" },
    { title: "In use", number: true }, { title: "Carries", number: true }, { title: "Rate now", number: true },
    { title: "Best of the hour", number: true }, { title: "Round trip", number: true }, { title: "Waited for" }],
  [], "no link was measured yet");
  const wrong = findingList();
  const more = el("p", { class: "note" });
  const chart = el("div");
  const histories = new Map();
  let names = "";
  let newest = null;
  const box = el("div", {}, el("p", { class: "filter" }, el("label", { for: "plan" }, "Plan of job"), " ", chosen),
    plan, graph, el("p", { class: "note" },
      "An edge shows how much of its best rate of the last hour each direction carries. A rate counts only while bytes are on their way."));
  const element = el("section", {}, el("h1", {}, "Links"), box, none,
    el("h2", {}, "What is wrong"), wrong, el("h2", {}, "All links"), links, more, chart);

  function draw() {
    const wanted = newest.plans.find((p) => p.job === chosen.value) ?? newest.plans[0];
    box.classList.toggle("hidden", !wanted);
    none.classList.toggle("hidden", !!wanted);
    if (!wanted) return;
    text(plan, `The plan in force: ${wanted.text}.`);
    const by = new Map(newest.links.map((l) => [JSON.stringify([l.from, l.to]), l]));
    graph.update(wanted, (a, b) => {
      const both = [by.get(JSON.stringify([a, b])), by.get(JSON.stringify([b, a]))].filter((l) => l?.best > 0);
      if (both.length === 0) return null;
      return { share: Math.max(...both.map((l) => l.use)),
        labels: both.map((l) => `to ${l.to.slice(0, 12)}: ${percent(l.use)} of ${rate(l.best)}`) };
    });
  }

  function remember(message) {
    for (const link of message.links) {
      const name = `${link.from} to ${link.to}`;
      const old = message.full ? undefined : histories.get(name);
      histories.set(name, {
        at: (old?.at ?? []).concat(link.at).slice(-KEPT),
        points: (old?.points ?? []).concat(link.points).slice(-KEPT),
      });
    }
    const fullest = message.links.toSorted((a, b) => b.use - a.use).slice(0, CHARTED)
      .map((l) => `${l.from} to ${l.to}`).sort();
    if (names !== JSON.stringify(fullest)) {
      names = JSON.stringify(fullest);
      chart.series = fullest;
      chart.line = lineChart("What the fullest links carry", fullest, (v) => (v ? rate(v) : "0"),
        "Nothing was carried in the last hour.");
      chart.replaceChildren(chart.line);
    }
    const { at, columns } = aligned(new Map(fullest.map((name) => [name, histories.get(name)])), message.every);
    if (at.length > 0) chart.line.update(at, columns);
  }

  async function show(message) {
    await loadRules();
    newest = message;
    const ids = JSON.stringify(message.plans.map((p) => p.job));
    if (chosen.shown !== ids) {
      chosen.shown = ids;
      const before = chosen.value;
      chosen.replaceChildren(...message.plans.map((p) => el("option", { value: p.job }, p.job)));
      if (message.plans.some((p) => p.job === before)) chosen.value = before;
    }
    draw();
    wrong.update(findingsOf(message.conditions, "").filter((f) => f.name.includes("Link")), message.now);
    links.update(message.links.toSorted((a, b) => b.use - a.use).map((l) => [l.from, l.to, percent(l.use), rate(l.used),
      rate(l.rate), rate(l.best), l.rtt ? seconds(l.rtt) : "not measured", l.awaited ? "yes" : "no"]));
    text(more, message.hidden ? `${message.hidden} more directions are not shown.` : "");
    remember(message);
  }
  chosen.addEventListener("change", () => newest && draw());
  return { title: "Links", element, show };
}
