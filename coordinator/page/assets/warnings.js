// Each alert of Prometheus' rules: whether it is true here, of whom, and what to do.

import { age, el, text } from "/dom.js";

const LISTED = 10; // Of those that one warning is of.

let rules = null;

export async function loadRules() {
  if (rules === null) rules = await (await fetch("/rules.json")).json();
  return rules;
}
loadRules();

function ruleOf(name) {
  return rules?.find((rule) => rule.name === name);
}

// What is wrong with one job; "": with none in particular.
export function findingsOf(conditions, job) {
  return conditions.flatMap((condition) => condition.found
    .filter((finding) => finding.job === job)
    .map((finding) => ({ ...finding, name: condition.name, severity: ruleOf(condition.name)?.severity ?? "warning" })))
    .sort((a, b) => b.fires - a.fires);
}

export function severityWord(finding) {
  return finding.fires ? { critical: "Critical", warning: "Warning", info: "Note" }[finding.severity] : "May come";
}

function title(name) {
  return name.replace(/^Pactrain/, "").replace(/([a-z])([A-Z])/g, (_, a, b) => `${a} ${b.toLowerCase()}`);
}

function lasting(rule) {
  return rule.for === 0 ? "at once" : `after ${age(0, rule.for)}`;
}

export function advice(rule) {
  return el("dl", { class: "advice" }, [
    ["Do", rule.do], ["Look", rule.command], ["Causes", rule.causes], ["It does not mean", rule.not_mean],
  ].map(([what, words]) => el("div", {}, el("dt", {}, what), el("dd", {}, words))));
}

// What is wrong with a job, with what to do.
export function findingList() {
  const list = el("ul", { class: "findings" });
  list.update = (findings, now) => {
    const wanted = JSON.stringify(findings.map((f) => [f.name, f.text, f.fires, age(f.since, now)]));
    if (wanted === list.shown) return;
    list.shown = wanted;
    list.replaceChildren(...(findings.length === 0 ? [el("li", { class: "good" }, "Nothing is wrong.")]
      : findings.map((f) => {
        const rule = ruleOf(f.name);
        return el("li", { class: f.fires ? f.severity : "waits" },
          el("strong", {}, `${severityWord(f)}, ${title(f.name)}: `), f.text, ` (since ${age(f.since, now)}) `,
          rule ? el("p", {}, el("strong", {}, "What to do: "), rule.do.replaceAll("JOB", () => f.job || "JOB")) : null);
      })));
  };
  return list;
}

// `wanted`: the alert whose entry is shown first, in small letters; alerts' runbook_url ends with it.
export function warningsScreen(wanted = "") {
  const box = el("div", { class: "rules" });
  const cards = new Map();
  const screen = { title: "Warnings", element: el("section", {}, el("h1", {}, "Warnings"),
    el("p", { class: "note" }, "What Prometheus would alert of, by the same numbers. Where it looks back a day, this page looks back an hour."),
    box) };

  function build() {
    for (const rule of rules) {
      const state = el("span", { class: "state" });
      const found = el("ul", { class: "findings" });
      const card = el("article", { tabindex: "-1" }, el("h2", {}, title(rule.name), " ", state), el("p", {}, rule.symptom), found,
        advice(rule), el("details", {}, el("summary", {}, `Condition of ${title(rule.name)}`),
          el("code", {}, rule.expr), el("p", {}, `${rule.severity}, ${lasting(rule)}`)));
      card.show = (condition, now) => {
        const firing = condition.found.filter((f) => f.fires).length;
        const word = !rule.here ? "only Prometheus can see it"
          : firing ? rule.severity : condition.found.length ? `true, told of ${lasting(rule)}` : "not so";
        text(state, word);
        state.className = `state ${firing ? rule.severity : condition.found.length ? "waits" : "good"}`;
        const wanted = condition.found.slice(0, LISTED).map((f) =>
          `${f.job ? `${f.job}: ` : ""}${f.text} (for ${age(f.since, now)})`);
        if (condition.found.length > LISTED) wanted.push(`and ${condition.found.length - LISTED} more`);
        if (found.shown === JSON.stringify(wanted)) return;
        found.shown = JSON.stringify(wanted);
        found.replaceChildren(...wanted.map((line) => el("li", {}, line)));
      };
      cards.set(rule.name, card);
      if (rule.name.toLowerCase() === wanted.toLowerCase()) screen.wanted = card;
    }
  }
  screen.show = async (message) => {
    await loadRules();
    if (cards.size === 0) build();
    const value = (c) => (c.found.some((f) => f.fires) ? 2 : c.found.length ? 1 : 0);
    const ordered = [...message.conditions].sort((a, b) => value(b) - value(a));
    ordered.forEach((condition, i) => {
      const card = cards.get(condition.name);
      card.show(condition, message.now);
      if (box.children[i] !== card) box.insertBefore(card, box.children[i] ?? null);
    });
    if (screen.wanted) {
      screen.wanted.classList.add("wanted");
      screen.wanted.focus();
      screen.wanted.scrollIntoView();
      screen.wanted = null; // Once: then readers go where they want.
    }
  };
  return screen;
}
