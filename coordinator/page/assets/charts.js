// Charts as SVG, each with its table: a line chart over the last hour, the strip of modes, and the
// graph of sites. Lines differ by their dashes, too, not by colour alone.

import { clock, el, svg, table } from "/dom.js";

const WIDTH = 640;
const HEIGHT = 190;
const LEFT = 118; // Twelve letters, as large as a telephone has them.
const BOTTOM = 24;
const ROWS = 24; // Of a table: as many moments, evenly chosen.
const GAP = 20; // Seconds: where nothing was known for longer, a line is broken.
const LABEL = 120; // Half of an edge's label, as large as a telephone has it.

function y(value, top) {
  return 16 + (HEIGHT - BOTTOM - 16) * (1 - value / top);
}

function path(at, values, x, top) {
  let line = "";
  let before = -Infinity;
  values.forEach((value, i) => {
    if (value === null || value === undefined) return;
    line += `${at[i] - before > GAP ? "M" : "L"}${x(at[i]).toFixed(1)} ${y(Math.min(value, top), top).toFixed(1)}`;
    before = at[i];
  });
  return line;
}

// A value at the top of the scale: 1, 2 or 5 times a power of ten.
function above(value) {
  if (!(value > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((f) => f * ten).find((f) => f >= value);
}

function last(values) {
  return values.findLast((v) => v !== null && v !== undefined);
}

// `series`: names of what update() gets as {name: values}. `show` writes a value.
export function lineChart(title, series, show, empty) {
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "chart" });
  const legend = el("ul", { class: "legend" });
  const rows = table(`${title}: figures`,
    [{ title: "Time" }, ...series.map((name) => ({ title: name, number: true }))], []);
  const note = el("p", { class: "note" }, empty);
  const figure = el("figure", {}, el("figcaption", {}, title), picture, legend, note,
    el("details", {}, el("summary", {}, `Table: ${title}`), rows));
  figure.update = (at, columns) => {
    const all = series.flatMap((name) => columns[name] ?? []).filter((v) => v !== null);
    const nothing = all.length === 0;
    picture.classList.toggle("hidden", nothing);
    legend.classList.toggle("hidden", nothing);
    note.classList.toggle("hidden", !nothing);
    if (nothing) return;
    const top = above(all.reduce((a, b) => Math.max(a, b), 0));
    const end = at.at(-1);
    const start = Math.min(at[0], end - 60);
    const x = (t) => LEFT + (WIDTH - LEFT - 12) * (t - start) / (end - start);
    const parts = [0, 0.5, 1].flatMap((share) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 12, y1: y(share * top, top), y2: y(share * top, top) }),
      svg("text", { class: "tick end", x: LEFT - 6, y: y(share * top, top) + 4 }, show(share * top)),
    ]);
    for (const share of [0, 0.5, 1]) {
      const where = start + share * (end - start);
      parts.push(svg("text", { class: `tick ${["", "middle", "end"][share * 2]}`, x: x(where), y: HEIGHT - 6 }, clock(where)));
    }
    series.forEach((name, i) => parts.push(
      svg("path", { class: `line line${i}`, d: path(at, columns[name] ?? [], x, top) })));
    picture.replaceChildren(...parts);
    const newest = series.map((name) => [name, last(columns[name] ?? [])]);
    picture.setAttribute("aria-label", `${title}, newest: ` + newest
      .map(([name, value]) => `${name} ${value === undefined ? "not known" : show(value)}`).join(", "));
    legend.replaceChildren(...newest.map(([name, value], i) => el("li", {},
      svg("svg", { viewBox: "0 0 28 8", class: "key", "aria-hidden": "true" },
        svg("path", { class: `line line${i}`, d: "M0 4L28 4" })),
      `${name}: ${value === undefined ? "not known" : show(value)}`)));
    const step = Math.max(1, Math.ceil(at.length / ROWS));
    rows.update(at.map((t, i) => [t, i]).filter(([, i]) => (at.length - 1 - i) % step === 0).reverse()
      .map(([t, i]) => [clock(t), ...series.map((name) => {
        const value = columns[name]?.[i];
        return value === null || value === undefined ? "not known" : show(value);
      })]));
  };
  return figure;
}

// Lines with points of their own, {at, points}, on one axis in steps of `every` seconds.
export function aligned(lines, every) {
  const slot = (t) => Math.round(t / every);
  const slots = [...new Set([...lines.values()].flatMap(({ at }) => at.map(slot)))].sort((a, b) => a - b);
  const columns = {};
  for (const [name, { at, points }] of lines) {
    const by = new Map(at.map((t, i) => [slot(t), points[i]]));
    columns[name] = slots.map((s) => by.get(s) ?? null);
  }
  return { at: slots.map((s) => s * every), columns };
}

// A share as a bar, beside the figure that says it.
export function bar(share) {
  const picture = svg("svg", { viewBox: "0 0 100 10", class: "bar", "aria-hidden": "true", preserveAspectRatio: "none" });
  picture.append(svg("rect", { class: "whole", width: 100, height: 10 }),
    svg("rect", { class: "part", width: Math.max(1, 100 * share), height: 10 }));
  return picture;
}

export function modeClass(mode) {
  return mode === "" ? "none" : mode.split(" ")[0].toLowerCase();
}

// Which mode was in force when, over the last hour at most.
export function modeStrip() {
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} 58`, role: "img", class: "chart strip" });
  const figure = el("figure", {}, picture);
  figure.update = (timeline, now) => {
    const first = timeline[0]?.at ?? now;
    const start = Math.max(now - 3600, Math.min(first, now - 60));
    const x = (t) => 6 + (WIDTH - 12) * (Math.max(t, start) - start) / (now - start);
    const parts = [];
    timeline.forEach((period, i) => {
      const until = timeline[i + 1]?.at ?? now;
      if (until < start) return;
      const width = Math.max(1, x(until) - x(period.at));
      parts.push(svg("rect", { class: `mode ${modeClass(period.mode)}`, x: x(period.at), y: 4, width, height: 30 }));
      const name = period.mode || "no generation";
      if (width > name.length * 7.4 + 8) {
        parts.push(svg("text", { class: "onmode", x: x(period.at) + width / 2, y: 24 }, name));
      }
    });
    parts.push(svg("text", { class: "tick", x: 6, y: 52 }, clock(start)),
      svg("text", { class: "tick end", x: WIDTH - 6, y: 52 }, "now"));
    picture.replaceChildren(...parts);
    const newest = timeline.at(-1);
    picture.setAttribute("aria-label", newest
      ? `Modes over the last hour; now ${newest.mode || "no generation runs"}, since ${clock(newest.at)}`
      : "Modes over the last hour: none yet");
  };
  return figure;
}

// A label's place beside an edge's middle, so that those of a triangle are apart.
function outwards(x) {
  return Math.min(Math.max(WIDTH / 2 + 1.35 * (x - WIDTH / 2), LABEL), WIDTH - LABEL);
}

// Sites on a circle, with the plan's edges; `use` says how full an edge is: {share, labels} or null.
export function siteGraph() {
  const size = 360;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${size}`, role: "img", class: "chart graph" });
  picture.update = (plan, use) => {
    const count = plan.sites.length;
    const place = new Map(plan.sites.map((site, i) => {
      const angle = 2 * Math.PI * i / count - (count === 2 ? 0 : Math.PI / 2);
      const far = count === 1 ? 0 : 1;
      return [site, [WIDTH / 2 + 225 * far * Math.cos(angle), size / 2 + 130 * far * Math.sin(angle)]];
    }));
    const lines = [];
    const labels = [];
    for (const [a, b] of plan.edges) {
      const [[x1, y1], [x2, y2]] = [place.get(a), place.get(b)];
      const found = use(a, b);
      const full = found === null ? "unknown" : found.share > 0.8 ? "full" : found.share > 0.4 ? "half" : "low";
      lines.push(svg("line", { class: `edge ${full}`, x1, y1, x2, y2 }));
      if (plan.edges.length <= 12) {
        const lineLabels = found === null ? ["not measured"] : found.labels;
        lineLabels.forEach((label, i) => labels.push(svg("text",
          { class: "edgelabel", x: outwards((x1 + x2) / 2), y: (y1 + y2) / 2 - 12 + 33 * i }, label)));
      }
    }
    const nodes = [...place].flatMap(([site, [cx, cy]]) => [
      svg("circle", { class: "site", cx, cy, r: 9 }),
      svg("text", { class: "sitename", x: cx, y: cy + (cy > size / 2 + 1 ? 28 : -16) },
        site.length > 18 ? `${site.slice(0, 17)}…` : site),
    ]);
    picture.replaceChildren(...lines, ...labels, ...nodes);
    picture.setAttribute("aria-label", `${count} sites in the plan in force: ${plan.text}`);
  };
  return picture;
}
