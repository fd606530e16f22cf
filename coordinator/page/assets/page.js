// The page: one stream of server-sent events, of what the address (#/...) names.

import { text } from "/dom.js";
import { jobScreen } from "/job.js";
import { jobsScreen } from "/jobs.js";
import { linksScreen } from "/links.js";
import { warningsScreen } from "/warnings.js";

const live = document.getElementById("live");
const main = document.getElementById("main");
const AGAIN_MS = 5000;
const SILENT_MS = 10000;

let stream = null;
let timer = null;
let screen = null;
let heard = 0;
let asked = "";

function say(what, lost = false) {
  text(live, what);
  live.classList.toggle("lost", lost);
}

// What is shown stays until there is something newer.
function listen(query) {
  asked = query;
  if (stream) stream.close();
  clearTimeout(timer);
  stream = new EventSource(`/events?${query}`);
  const mine = stream;
  stream.onmessage = (event) => {
    if (mine !== stream) return;
    heard = Date.now();
    say("live");
    const shown = screen;
    Promise.resolve(shown.show(JSON.parse(event.data))).then(() => { shown.element.dataset.shown = "yes"; });
  };
  stream.onerror = () => {
    if (mine !== stream) return;
    say("The coordinator does not answer, or has too many viewers. What you see is old; trying again. "
      + "Running jobs train on without it.", true);
    // A refusal ends a stream for good.
    if (stream.readyState === EventSource.CLOSED) timer = setTimeout(() => listen(asked), AGAIN_MS);
  };
}

function route() {
  const [, name = "", rest = ""] = location.hash.match(/^#\/([^/]*)\/?(.*)$/) ?? [];
  let query = "view=overview";
  if (name === "job") {
    let id = rest;
    try {
      id = decodeURIComponent(rest);
    } catch {
      // Not escaped as it should be: then no job has this name.
    }
    screen = jobScreen(id);
    query = `view=job&job=${encodeURIComponent(id)}`;
  } else if (name === "links") {
    screen = linksScreen();
    query = "view=links";
  } else if (name === "warnings") {
    screen = warningsScreen(rest);
  } else {
    screen = jobsScreen();
  }
  document.title = `${screen.title} - PacTrain`;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `#/${name}` || (name === "job" && link.hash === "#/");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(screen.element);
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
  say("connecting");
  listen(query);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", route);
setInterval(() => {
  if (heard && Date.now() - heard > SILENT_MS) {
    heard = Date.now();
    say("Nothing was heard of the coordinator for 10 s. What you see is old; trying again. "
      + "Running jobs train on without it.", true);
    listen(asked);
  }
}, 2000);
route();
