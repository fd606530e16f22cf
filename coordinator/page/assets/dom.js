// Builds the page's elements. Whatever comes from the coordinator goes through text(), so that a
// name stays a name.

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

// Changes nothing where nothing has changed: readers of screens and selections stay undisturbed.
export function text(element, value) {
  const wanted = String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
  return element;
}

// Rows are arrays of texts or elements; `columns` are {title, number}.
export function table(caption, columns, rows, empty = "none") {
  const body = el("tbody");
  const whole = el("table", {}, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, columns.map((c) =>
      el("th", { scope: "col", class: c.number ? "number" : null }, c.title)))), body);
  const box = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": caption }, whole);
  box.update = (fresh) => {
    const shown = JSON.stringify(fresh.map((row) => row.map((c) => c?.textContent ?? c)));
    if (shown === box.shown) return;
    box.shown = shown;
    body.replaceChildren(...fresh.map((row) => el("tr", {}, row.map((cell, i) =>
      el("td", { class: columns[i].number ? "number" : null }, cell)))));
    if (fresh.length === 0) body.append(el("tr", {}, el("td", { colspan: columns.length }, empty)));
  };
  box.update(rows);
  return box;
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

function short(number) {
  return number.toLocaleString("en", { maximumSignificantDigits: 3 });
}

export function bytes(count) {
  if (count === null || count === undefined) return "not known";
  let unit = 0;
  let size = Math.abs(count);
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${count < 0 ? "−" : ""}${short(size)} ${UNITS[unit]}`;
}

export function rate(bytesPerSecond) {
  if (!bytesPerSecond) return "not measured";
  const bits = bytesPerSecond * 8;
  return bits >= 1e9 ? `${short(bits / 1e9)} Gbit/s` : `${short(bits / 1e6)} Mbit/s`;
}

export function seconds(count) {
  if (count === null || count === undefined) return "not known";
  const size = Math.abs(count);
  const sign = count < 0 ? "−" : "";
  if (size < 1) return `${sign}${short(size * 1000)} ms`;
  if (size < 120) return `${sign}${short(size)} s`;
  if (size < 7200) return `${sign}${short(size / 60)} min`;
  return `${sign}${short(size / 3600)} h`;
}

export function percent(share) {
  return share === null || share === undefined ? "not known" : `${short(share * 100)} %`;
}

export function plain(number, digits = 3) {
  if (number === null || number === undefined) return "not known";
  return number.toLocaleString("en", { maximumSignificantDigits: digits });
}

export function money(amount) {
  return amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

export function howMany(number, what) {
  return `${plain(number, 12)} ${what}${number === 1 ? "" : "s"}`;
}

export function age(since, now) {
  const passed = Math.max(0, now - since);
  if (passed < 60) return "less than a minute";
  if (passed < 3600) return `${Math.floor(passed / 60)} min`;
  const hours = Math.floor(passed / 3600);
  return `${hours} h ${Math.floor((passed % 3600) / 60)} min`;
}

// Of something that a coordinator found at its start.
export function clockOrBefore({ at, before }) {
  return `${before ? "before " : ""}${clock(at)}`;
}

// A coordinator that was started again does not know when it began.
export function sinceWhen(since, before, now) {
  return before ? `since before ${clock(since)}` : `for ${age(since, now)}`;
}

// "12 times as small"; what was sent may also be larger.
export function ratio(dense, sent) {
  if (!dense || !sent) return "nothing sent yet";
  return `1 of ${short(dense / sent)} bytes`;
}
